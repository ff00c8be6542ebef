"""Damage to images in shards."""

from pathlib import Path

from datapipe.index.dataset import open_dataset


def overwrite_image(folder: Path, sample: int, image: int = 0) -> None:
    """Write zeros over the second half of an image of a sample."""
    dataset = open_dataset(folder)
    member = [m for m in dataset.columns.members(sample) if m.ext != "json"][image]
    with (folder / dataset.manifest.shards[dataset.columns.shard(sample)].name).open("r+b") as file:
        file.seek(member.offset + member.size // 2)
        file.write(b"\0" * (member.size - member.size // 2))
