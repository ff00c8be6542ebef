"""Dataset of a billion samples that `make_loader` opens and plans, in 16 GB of disk.

What packs of images of one size are planned from (tokens, labels and images of each sample) is
written whole. Shards, their indexes and all other columns have their sizes and no content: they are
files with holes, whose checksums are those of zeros.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.billion import write_columns
from benchmarks.common import made_once
from benchmarks.mixtures.data import text_spec
from datapipe.index import columns as index_columns
from datapipe.index.columns import COLUMNS
from datapipe.index.files import block_checksums
from datapipe.index.files.block_checksums import BLOCK, SUMS
from datapipe.index.files.crc32 import crc32
from datapipe.index.files.derived import write_about
from datapipe.index.files.npy import HEADER, NpyFile, header, map_npy
from datapipe.index.manifest import MANIFEST, Contribution, Manifest, Shard, write_manifest
from datapipe.index.tokens import columns as token_columns
from datapipe.index.tokens.columns import DTYPES as TOKEN_DTYPES
from datapipe.index.tokens.columns import VERSION as TOKENS_VERSION
from datapipe.text.encode import TextEncoder

SHARD = 10_000  # samples
MOST_IMAGES = 2  # of a sample, one on average
MEMBER_BYTES = 100_000  # of a sample in a shard
_INDEX_BYTES, _KEY, _SOURCE = 60, 10, 20  # bytes of a sample's row in an index, of its names
_MADE = {"text.npy": "text_tokens.npy", "labels.npy": "label_tokens.npy"}


def dataset(home: Path, samples: int) -> Path:
    """Return the folder of the dataset, made if it is missing; exit if the disk has no room."""
    folder = home / f"dataset-{samples}"
    if folder.exists():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(home).free) < 20 * samples:
        raise SystemExit(f"{home} has {free / 1e9:.0f} GB free; {20 * samples / 1e9:.0f} GB needed")
    print(f"writing a dataset of {samples:,} samples to {folder}", flush=True)
    return made_once(folder, partial(_write, samples=samples))


def planned_from(folder: Path) -> list[Path]:
    """Return the files that opening and planning read: those that are not all holes."""
    found = [path for path in folder.rglob("*") if path.parent != folder and path.is_file()]
    found = [path for path in found if path.stat().st_blocks * 512 > 4 * BLOCK]
    return [folder / MANIFEST, *found]


def _write(folder: Path, samples: int) -> None:
    shards = _shards(folder, samples)
    part = Contribution(shards=len(shards), inputs=samples, inputs_sha256="0" * 64, rejected=0)
    manifest = Manifest(shards=shards, parts=(part,))
    encoder = TextEncoder(text_spec())
    columns, tokens = folder / COLUMNS, folder / token_columns.token_folder(encoder.digest)
    columns.mkdir()
    tokens.mkdir()
    write_columns(columns, samples, most_images=MOST_IMAGES)
    for old, new in _MADE.items():
        (columns / old).rename(tokens / new)
    images = int(np.load(columns / "sample_image.npy", mmap_mode="r")[-1])
    (columns / "sums").unlink()
    members = samples + images
    counts = {"sample": samples + 1, "text": samples, "member": members, "image": images}
    counts |= {"key": _KEY * samples, "source": _SOURCE * samples}
    lengths = {name: counts[name.partition("_")[0]] for name in index_columns.DTYPES}
    about = {
        "version": index_columns._VERSION,
        "fingerprint": manifest.fingerprint,
        "extensions": ["jpg", "1.jpg", "txt"],
        "index_bytes": [_INDEX_BYTES * shard.samples for shard in shards],
        "checksums_crc32": _holes(columns, index_columns.DTYPES, lengths),
    }
    write_about(columns / "columns.json", about)
    (tokens / token_columns.FAILURES).touch()
    (tokens / token_columns.SHARDS).write_text(json.dumps([asdict(shard) for shard in shards]))
    lengths = dict.fromkeys(TOKEN_DTYPES, samples)
    lengths |= {"sample_image_at": samples + 1, "sample_label": samples + 1, "image_at": images}
    about = {
        "version": TOKENS_VERSION,
        "digest": encoder.digest,
        "fingerprint": manifest.fingerprint,
        "samples": samples,
        "failed": 0,
        "image_wrap": encoder.image_wrap,
        "checksums_crc32": _holes(tokens, TOKEN_DTYPES, lengths),
    }
    compared = (token_columns.FAILURES, token_columns.SHARDS)
    write_about(tokens / token_columns.ABOUT, about, compared=compared)
    write_manifest(folder, manifest)


def _shards(folder: Path, samples: int) -> tuple[Shard, ...]:
    shards = []
    for number, start in enumerate(range(0, samples, SHARD)):
        count = min(SHARD, samples - start)
        name = f"shard-{number:06d}"
        for suffix, each in (("tar", MEMBER_BYTES), ("parquet", _INDEX_BYTES)):
            (folder / f"{name}.{suffix}").touch()
            os.truncate(folder / f"{name}.{suffix}", each * count)
        shards.append(
            Shard(
                name=f"{name}.tar",
                index=f"{name}.parquet",
                samples=count,
                images=count,
                bytes=MEMBER_BYTES * count,
                index_sha256=f"{number:064x}",
            )
        )
    return tuple(shards)


def _holes(folder: Path, dtypes: Mapping[str, str], lengths: Mapping[str, int]) -> int:
    """Make the columns that are missing, all holes, and the checksums of all."""
    sums = NpyFile(folder / SUMS, "<u4")
    for name, dtype in dtypes.items():
        path = folder / f"{name}.npy"
        if path.exists():
            for found in block_checksums.sums_of(path):
                sums.append(found)
            continue
        first = header(dtype, lengths[name])
        size = HEADER + lengths[name] * np.dtype(dtype).itemsize
        path.write_bytes(first)
        os.truncate(path, size)
        found = np.full(-(-size // BLOCK), crc32(bytes(BLOCK)), np.uint32)
        found[-1] = crc32(bytes(size - BLOCK * (len(found) - 1)))
        found[0] = crc32(first + bytes(min(size, BLOCK) - HEADER))
        sums.append(found)
    sums.close()
    return crc32(map_npy(folder / SUMS, "<u4").data)
