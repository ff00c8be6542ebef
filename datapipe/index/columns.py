"""The columns that plan and fetch read, as plain `.npy` files that are memory-mapped.

They are derived from the shards' Parquet indexes, named after the manifest they were made from, and
rebuilt when missing, stale or damaged. Opening a dataset of a billion samples maps them and reads
nothing; see `files/block_checksums.py` for how what is read is compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools, Int32, Int64, UInt8, UInt16, UInt32
from datapipe.errors import IndexMismatch
from datapipe.index.files import derived
from datapipe.index.files.block_checksums import write_sums
from datapipe.index.files.npy import npy_files
from datapipe.index.files.random_read import gather, read_values, take_values
from datapipe.index.images.header import is_stored_image
from datapipe.index.manifest import Manifest
from datapipe.index.parquet import checked_index
from datapipe.index.rows import Member
from datapipe.text.videos import frame_of, is_kept

COLUMNS = "columns"
_ABOUT = "columns.json"
_VERSION = 6
_KEYS_AT_ONCE = 1 << 20  # that are compared
_MOST_EXTENSIONS = np.iinfo(np.uint16).max

DTYPES: dict[str, str] = {
    "sample_member": "<i8",
    "sample_image": "<i8",
    "sample_key": "<i8",
    "sample_source": "<i8",
    "text_bytes": "<i8",
    "key_bytes": "|u1",
    "source_bytes": "|u1",
    "member_offset": "<i8",
    "member_size": "<i8",
    "member_crc32": "<u4",
    "member_ext": "<u2",
    "image_width": "<i4",
    "image_height": "<i4",
}
"""Every column and its dtype, in NumPy's notation. `Columns` says what they hold."""

_FILES = {f"{name}.npy": dtype for name, dtype in DTYPES.items()}
_OFFSETS = ("sample_member", "sample_image", "sample_key", "sample_source")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Memory-mapped columns of N samples, M members and I images.

    Ragged columns have offsets: the members of sample `i` are `sample_member[i]` to
    `sample_member[i + 1]`, likewise its images and the bytes of its key and its source.
    """

    extensions: tuple[str, ...]
    shard_sample: Int64  # int64 [shards + 1], number of the first sample of each shard
    # `sample_member`, `sample_image`, `sample_key`, `sample_source`: int64 [N + 1]
    sample_member: Int64
    sample_image: Int64
    sample_key: Int64
    sample_source: Int64
    text_bytes: Int64  # int64 [N]
    # `key_bytes`, `source_bytes`: uint8, UTF-8, concatenated
    key_bytes: UInt8
    source_bytes: UInt8
    # `member_offset`, `member_size`: int64 [M], bytes
    member_offset: Int64
    member_size: Int64
    member_crc32: UInt32  # uint32 [M]
    member_ext: UInt16  # uint16 [M], into `extensions`
    # `image_width`, `image_height`: int32 [I], pixels of the upright image
    image_width: Int32
    image_height: Int32
    index_bytes: tuple[int, ...]  # size of each shard's index file

    def key(self, sample: int) -> str:
        return self.keys(np.array([sample]))[0]

    def keys(self, samples: Int64) -> list[str]:
        """Return the keys of samples; `samples` is int64 [n]."""
        return self.texts("key", samples)

    def sources(self, samples: Int64) -> list[str]:
        """Return where samples came from; `samples` is int64 [n]."""
        return self.texts("source", samples)

    def texts(self, name: str, samples: Int64) -> list[str]:
        """Return `key` or `source` of samples; `samples` is int64 [n]."""
        offsets = getattr(self, f"sample_{name}")
        return texts_at(getattr(self, f"{name}_bytes"), offsets[samples], offsets[samples + 1])

    def strings(self, name: str, start: int, stop: int) -> pa.Array:
        """Return `key` or `source` of the samples `start` to `stop`: large_string [n]."""
        offsets = getattr(self, f"sample_{name}")[start : stop + 1]
        text = getattr(self, f"{name}_bytes")[offsets[0] : offsets[-1]]
        buffers = [None, pa.py_buffer(offsets - offsets[0]), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.large_string(), stop - start, buffers)

    def members(self, sample: int) -> list[Member]:
        """Return the members of one sample, in the order of the index."""
        return self.members_at(np.arange(*self.sample_member[sample : sample + 2].tolist()))

    def members_at(self, indices: Int64) -> list[Member]:
        """Return members by their indices in the columns of members: int64 [n]."""
        codes, *others = (values.tolist() for values in self.member_values(indices))
        return list(map(Member, [self.extensions[code] for code in codes], *others))

    def member_values(self, indices: Int64) -> tuple[UInt16, Int64, Int64, UInt32]:
        """Return extension, offset, size and checksum of members, as the columns have them: [n]."""
        offsets, sizes = self.member_offset[indices], self.member_size[indices]
        return self.member_ext[indices], offsets, sizes, self.member_crc32[indices]

    def image_sides(
        self, samples: Int64, counts: Int64 | None = None
    ) -> tuple[Int64, Int64, Int64]:
        """Return widths and heights of the images of n samples, and offsets: int64, [n + 1].

        Sample i has those from `offsets[i]` to the next. With `counts`, int64 [n], only its first
        `counts[i]` images are among them.
        """
        # Batches, which come again and again, look them up through a mapping.
        look = read_values if counts is None else take_values
        starts, stops = look(self.sample_image, samples, 2).T
        counts = stops - starts if counts is None else counts
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        images = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        widths = gather(self.image_width, images).astype(np.int64)
        return widths, gather(self.image_height, images).astype(np.int64), offsets

    def shard(self, sample: int) -> int:
        """Return the number of the shard that holds a sample."""
        return int(self.shard_sample.searchsorted(sample, side="right")) - 1

    def shards(self, samples: Int64) -> Int64:
        """Return the numbers of the shards that hold samples: int64 [n] in and out."""
        return self.shard_sample.searchsorted(samples, side="right").astype(np.int64) - 1


def texts_at(data: UInt8, starts: Int64, stops: Int64) -> list[str]:
    """Return the texts that stand at some places, as UTF-8: `starts` and `stops` are int64 [n]."""
    if len(starts) > 1 and stops[0] > starts[0] and (stops - starts == stops[0] - starts[0]).all():
        # Keys that are numbers are all of one length, and quicker to decode as one text.
        length = int(stops[0] - starts[0])
        text = data[starts[:, None] + np.arange(length)].tobytes().decode("utf-8", "replace")
        if text.isascii():
            return [text[at : at + length] for at in range(0, len(text), length)]
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    return [data[a:b].tobytes().decode() for a, b in pairs]


def find_keys(columns: Columns, keys: Collection[str]) -> dict[str, int]:
    """Return the numbers of the samples with these keys; keys that no sample has are missing.

    There is no index of keys: all keys are compared with the few wanted.
    """
    found: dict[str, int] = {}
    encodable = {key for key in keys if key == key.encode(errors="replace").decode()}
    wanted = pa.array(sorted(encodable), pa.large_string())
    samples = len(columns.text_bytes)  # columns of a mixture have it too
    for start in range(0, samples, _KEYS_AT_ONCE):
        array = columns.strings("key", start, min(start + _KEYS_AT_ONCE, samples))
        for row in np.flatnonzero(pc.is_in(array, wanted).to_numpy(zero_copy_only=False)).tolist():
            found.setdefault(array[row].as_py(), start + row)
    return found


def open_columns(home: Path, manifest: Manifest, max_frames: int | None = None) -> Columns:
    """Map the columns of the index in `home`, made where needed; `IndexMismatch` if they cannot.

    With `max_frames`, samples have at most this many frames of each video.
    """
    return derived.open_or_build(
        home,
        COLUMNS if max_frames is None else f"{COLUMNS}-{max_frames}-frames",
        manifest.fingerprint,
        "columns",
        open_at=lambda folder: columns_in(folder, manifest),
        build=lambda folder: _build(home, folder, manifest, max_frames),
    )


def columns_in(folder: Path, manifest: Manifest) -> Columns | None:
    """Return the columns in `folder`; None where they are missing, stale or damaged."""
    about = derived.read_about(folder / _ABOUT, _VERSION, fingerprint=manifest.fingerprint)
    arrays = about and derived.open_described(folder, about, _FILES, "its columns are made")
    if not about or not arrays:
        return None
    counts = [shard.samples for shard in manifest.shards]
    return Columns(
        extensions=tuple(about["extensions"]),
        index_bytes=tuple(about["index_bytes"]),
        shard_sample=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64),
        **arrays,
    )


def _build(home: Path, folder: Path, manifest: Manifest, max_frames: int | None) -> Columns:
    """Consolidate the Parquet indexes in `home` into `folder`; memory stays at one shard's index.

    Nothing waits for the disk: what a power cut leaves differs in size, and is rebuilt.
    """
    with derived.new_folder(folder, lambda: columns_in(folder, manifest) is not None) as temporary:
        about = {"version": _VERSION, "fingerprint": manifest.fingerprint}
        about |= _consolidate(home, temporary, manifest, max_frames)
        about["checksums_crc32"] = write_sums(temporary, _FILES)
        derived.write_about(temporary / _ABOUT, about)
    if (columns := columns_in(folder, manifest)) is None:
        raise IndexMismatch(
            f"{folder}: the columns are damaged as soon as they are written; check the disk, "
            "or copy the dataset to another one"
        )
    return columns


def _consolidate(
    home: Path, folder: Path, manifest: Manifest, max_frames: int | None
) -> dict[str, Any]:
    """Write all columns into `folder`; return `extensions` and `index_bytes`."""
    codes: dict[str, int] = {}
    sizes = []
    with npy_files(folder, DTYPES, _OFFSETS) as files:
        for shard in manifest.shards:
            table = checked_index(home, shard)
            sizes.append((home / shard.index).stat().st_size)
            flat = {name: pc.list_flatten(table[name]) for name in ("offset", "size", "crc32")}
            names = pc.list_flatten(table["ext"]).to_pylist()
            numbers = np.array([codes.setdefault(name, len(codes)) for name in names], np.int64)
            if len(codes) > _MOST_EXTENSIONS:
                raise IndexMismatch(
                    f"{home / shard.name}: more than {_MOST_EXTENSIONS:,} different extensions of "
                    f"members, such as {names[-1]!r}; a key ends at the first dot of a name: "
                    "rename the members, or pack them again from their source"
                )
            members, images = (
                pc.list_value_length(table[name]).to_numpy() for name in ("ext", "image_width")
            )
            kept: Any = slice(None)
            shown: Any = slice(None)
            if max_frames is not None:
                owners = np.repeat(np.arange(len(members)), members)
                kept, is_image = _kept(list(codes), numbers, owners, max_frames)
                shown = kept[is_image]
                members, images = (
                    np.bincount(owners[chosen], minlength=len(members))
                    for chosen in (kept, kept & is_image)
                )
            for name, column in flat.items():
                files[f"member_{name}"].append(column.to_numpy()[kept])
            files["member_ext"].append(numbers[kept].astype(np.uint16))
            files["text_bytes"].append(table["text_bytes"].to_numpy())
            for name in ("image_width", "image_height"):
                files[name].append(pc.list_flatten(table[name]).to_numpy()[shown])
            for name in ("key", "source"):
                joined = "".join(table[name].to_pylist()).encode()
                files[f"{name}_bytes"].append(np.frombuffer(joined, np.uint8))
                files[f"sample_{name}"].append_ends(pc.binary_length(table[name]).to_numpy())
            files["sample_member"].append_ends(members)
            files["sample_image"].append_ends(images)
    return {"extensions": list(codes), "index_bytes": sizes}


def _kept(
    extensions: list[str], codes: Int64, owners: Int64, max_frames: int
) -> tuple[Bools, Bools]:
    """Return the members that stay, and those that are images: bool [members] each.

    `codes`, int64 [members], say which of the extensions each has, and `owners` its sample.
    """
    found = [frame_of(ext) if is_stored_image(ext) else None for ext in extensions]
    videos = np.array([-1 if frame is None else frame[0] for frame in found], np.int64)[codes]
    frames = np.flatnonzero(videos >= 0)
    order = frames[np.lexsort((videos[frames], owners[frames]))]
    differ = (np.diff(owners[order]) != 0) | (np.diff(videos[order]) != 0)
    counts = np.diff([0, *(np.flatnonzero(differ) + 1).tolist(), len(order)])
    ranks = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
    kept = np.ones(len(codes), bool)
    kept[order] = is_kept(ranks, np.repeat(counts, counts), max_frames)
    return kept, np.array(list(map(is_stored_image, extensions)), bool)[codes]
