"""Megatron-Energon takes our sidecars for a dataset that it prepared itself."""

import json
import shutil
import tarfile

import pytest

from datapipe.decode.image import decode_rgb
from datapipe.index.manifest import read_manifest
from datapipe.index.sidecars import write_sidecars
from datapipe.index.tar.indexer import index_shards

energon = pytest.importorskip("megatron.energon")
EPath = pytest.importorskip("megatron.energon.epathlib").EPath

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument")


def alone():
    return energon.WorkerConfig(rank=0, world_size=1, num_workers=0)


def read_bytes(folder):
    """Members of every sample as Energon reads them, whatever `dataset.yaml` says."""
    dataset = energon.CrudeWebdataset(
        EPath(folder), split_part="train", training=False, worker_config=alone(), decoder=None
    )
    samples = list(energon.get_loader(dataset.build()))
    assert len(samples) == len(dataset)
    return {
        sample["__key__"]: {ext: data for ext, data in sample.items() if ext[:2] != "__"}
        for sample in samples
    }


@pytest.mark.parametrize("packed", ["packed_captions", "packed_mixture"])
def test_every_member_of_every_sample_is_read(packed, members, request):
    folder = request.getfixturevalue(packed)
    write_sidecars(folder, read_manifest(folder), ["energon"])
    assert read_bytes(folder) == members(folder)


@pytest.mark.parametrize("shard", ["train/a.0.tar", "{1,2}.tar", "größe \\ 1.tar"])
def test_foreign_shards_with_folders_and_long_names_are_read(make_tar, tmp_path, shard):
    names = ["a/1.jpg", "a/1.txt", "b/" + "x" * 120 + ".jpg", "b/2.txt"]
    members = [(name, name.encode()) for name in names]
    make_tar(tmp_path / shard, members, tarfile.GNU_FORMAT)
    write_sidecars(tmp_path, index_shards(tmp_path), ["energon"])
    found = read_bytes(tmp_path)
    assert found.pop("a/1") == {"jpg": b"a/1.jpg", "txt": b"a/1.txt"}
    assert found.pop("b/2") == {"txt": b"b/2.txt"}
    assert len(found) == 1


def test_captions_come_with_the_picture_that_we_decode(packed_captions, members):
    write_sidecars(packed_captions, read_manifest(packed_captions), ["energon"])
    dataset = energon.get_val_dataset(
        packed_captions, split_part="train", worker_config=alone(), batch_size=1
    )
    expected = list(members(packed_captions).values())
    for number, sample in enumerate(energon.get_loader(dataset)):
        pixels = (sample.image[0].permute(1, 2, 0) * 255).round().int().numpy()
        assert abs(pixels - decode_rgb(expected[number]["jpg"]).astype(int)).mean() < 2
        assert sample.caption[0].encode() == expected[number]["txt"]
    assert number == 10


def test_our_files_are_those_that_energon_prepares(packed_captions, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(packed_captions, theirs)
    write_sidecars(packed_captions, read_manifest(packed_captions), ["energon"])
    names = sorted(path.name for path in theirs.glob("*.tar"))
    energon.CrudeWebdataset.prepare_dataset(
        theirs, names, split_parts_ratio=[("train", 1), ("val", 0), ("test", 0)], workers=1
    )
    folders = (packed_captions, theirs)
    for name in names:
        ours, prepared = ((folder / f"{name}.idx").read_bytes() for folder in folders)
        assert ours == prepared
    infos = [json.loads((folder / ".nv-meta/.info.json").read_text()) for folder in folders]
    assert infos[0]["shard_counts"] == infos[1]["shard_counts"]
