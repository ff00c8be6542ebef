"""`datapipe verify` names each damaged file and sample, and finds nothing in a whole dataset."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec

from .damage import WAYS, Original, harm, made

ROUNDS = int(os.environ.get("DATAPIPE_DAMAGES", "40"))
KINDS = ("packed", "gnu", "pax")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: Any, make_folder: Any) -> dict[str, Original]:
    return {kind: made(tmp_path_factory.mktemp(kind), make_folder, kind=kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_random_is_named(
    kind: str, originals: dict[str, Original], tmp_path: Path
) -> None:
    whole = originals[kind]
    for number in range(ROUNDS):
        seed = f"verify {kind} {number}"
        choice = random.Random(seed)
        folder = whole.restore(tmp_path / "harmed")
        shards = choice.sample(whole.shards, choice.randint(1, 2))
        ways = {shard: choice.choice(WAYS) for shard in shards}
        for shard, way in ways.items():
            harm(folder / shard, way, choice)
        report = datapipe.verify_dataset(folder, workers=2)
        hint = (seed, ways, report.findings)
        now = {s: (folder / s).read_bytes() if (folder / s).exists() else None for s in shards}
        altered = {s for s in shards if not whole.is_same(s, now[s])}
        found = {finding.file for finding in report.findings}
        assert altered <= found <= {s for s in shards if now[s] != whole.files[s]}, hint
        changed = whole.changed(folder)
        missing = {s for s in shards if now[s] is None}
        named = {(f.file, f.key) for f in report.findings if f.key}
        assert {pair for pair in changed if pair[0] not in missing} <= named, hint
        assert report.damaged_samples >= len(changed), hint
        for finding in report.findings:  # the range covers a byte that is not what it was
            if "its header calls it" in finding.problem:
                continue  # an extended header before it names another member
            if finding.key and len(now[finding.file] or b"") == len(whole.files[finding.file]):
                a, b = finding.start, finding.stop
                assert (now[finding.file] or b"")[a:b] != whole.files[finding.file][a:b], (
                    hint,
                    finding,
                )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_found_in_a_whole_dataset(
    kind: str, deep: bool, originals: dict[str, Original]
) -> None:
    report = datapipe.verify_dataset(originals[kind].folder, deep=deep)
    assert report.is_whole
    assert (report.findings, report.notes) == ((), ())
    assert (report.samples, report.members, report.files) == (12, 24, 3)


def damaged_file(folder: Path, name: str, at: int = 1000) -> None:
    path = next(folder.glob(name))
    content = bytearray(path.read_bytes())
    content[min(at, len(content) // 2)] ^= 16
    path.write_bytes(content)


def found_in(folder: Path, **options: Any) -> dict[str, str]:
    return {f.file: f.problem for f in datapipe.verify_dataset(folder, **options).findings}


@pytest.mark.parametrize("name", ["dataset.json", "*1.parquet", "columns/member_crc32.npy"])
@pytest.mark.parametrize("way", ["damaged", "lost"])
def test_shards_are_checked_where_other_files_are_damaged(
    name: str, way: str, originals: dict[str, Original], tmp_path: Path
) -> None:
    whole = originals["packed"]
    folder = whole.restore(tmp_path / "harmed")
    path = next(folder.glob(name))
    if way == "damaged":
        damaged_file(folder, name)
    else:
        path.unlink()
    relative = path.relative_to(folder).as_posix()
    assert list(found_in(folder)) == [relative]
    damaged_file(folder, "*1.tar", whole.samples[4].spans[0][0] + 100)
    report = datapipe.verify_dataset(folder)
    named = {(f.file, f.key) for f in report.findings}
    assert named == {(relative, ""), ("shard-000001.tar", "000000004")}
    assert report.damaged_samples == 1


def test_a_shard_without_any_index_is_checked_by_its_headers(
    originals: dict[str, Original], tmp_path: Path
) -> None:
    whole = originals["packed"]
    folder = whole.restore(tmp_path / "harmed")
    for path in folder.glob("*.parquet"):
        path.unlink()
    (folder / "dataset.json").unlink()
    for path in (folder / "columns").iterdir():
        path.unlink()
    found = found_in(folder)
    assert set(found) == {"dataset.json", *(f"shard-00000{n}.parquet" for n in range(3))}
    assert "nothing to be compared with" in found["shard-000001.parquet"]
    damaged_file(folder, "*1.tar", whole.samples[4].spans[1][0] - 400)  # in a header
    assert "a header is damaged" in found_in(folder)["shard-000001.tar"]
    begin = whole.samples[8].spans[0][0]
    damaged_file(folder, "*2.tar", begin + 3)  # in the markers of a JPEG
    assert "shard-000002.tar" not in found_in(folder)
    assert "shard-000002.tar" in found_in(folder, deep=True)


def test_arrays_are_compared(originals: dict[str, Original], tmp_path: Path) -> None:
    arrays = tmp_path / "arrays"
    datapipe.convert_dataset(originals["packed"].folder, arrays, image=ImageSpec(size=8))
    assert datapipe.verify_dataset(arrays).is_whole
    assert datapipe.verify_dataset(arrays, deep=True).members == 24
    damaged_file(arrays, "images.npy", 128 + 3 * 192 + 5)
    damaged_file(arrays, "texts.npy", 128 + 13)
    damaged_file(arrays, "image_placement.npy", 200)
    report = datapipe.verify_dataset(arrays)
    assert [(f.file, f.key, f.member, f.start) for f in report.findings] == [
        ("image_placement.npy", "", "", 0),
        ("texts.npy", "000000000", "000000000.txt", 128),
        ("images.npy", "000000003", "image 3", 128 + 3 * 192),
    ]
    assert report.damaged_samples == 2
    (arrays / "image_crc32.npy").unlink()
    assert "is missing" in found_in(arrays)["image_crc32.npy"]
