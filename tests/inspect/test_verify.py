"""`datapipe verify` names each damaged file and sample, and finds nothing in a whole dataset."""

import errno
import json
import os
import random
from dataclasses import replace

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.cli.verify import next_step
from datapipe.index.columns import DTYPES
from datapipe.index.files.block_checksums import write_sums
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.record_fields import FieldFiles
from datapipe.inspect import shard_check, shard_job
from datapipe.inspect.tar_headers import are_plain
from datapipe.pack.writers.ustar import BLOCK, MAX_NAME, member_header
from tests.flipping import flip
from tests.programs import python
from tests.remote.server import serving

from .damage import KINDS, WAYS, damaged_file, harm, read

ROUNDS = int(os.environ.get("DATAPIPE_DAMAGES", "12"))


@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_random_is_named(kind, originals, tmp_path, monkeypatch):
    whole = originals[kind]
    for number in range(ROUNDS):
        monkeypatch.setattr(shard_check, "HEADERS_AT_ONCE", number % 4 + 1)  # of 8 in a shard
        seed = f"verify {kind} {number}"
        choice = random.Random(seed)
        folder = whole.restore(tmp_path / "harmed")
        shards = choice.sample(whole.shards, choice.randint(1, 2))
        ways = {shard: choice.choice(WAYS) for shard in shards}
        for shard, way in ways.items():
            harm(folder / shard, way, choice)
        report = datapipe.verify_dataset(folder, workers=2)
        hint = (seed, ways, report.findings)
        now = {shard: read(folder / shard) for shard in shards}
        altered = {s for s in shards if not whole.is_same(s, now[s])}
        found = {finding.file for finding in report.findings}
        assert altered <= found <= {s for s in shards if now[s] != whole.files[s]}, hint
        changed = whole.changed(folder)
        there = {pair for pair in changed if ways[pair[0]] != "remove"}
        assert there <= {(f.file, f.key) for f in report.findings if f.key}, hint
        assert report.damaged_samples >= len(changed), hint
        for finding in report.findings:  # the range covers a byte that is not what it was
            if "its header calls it" in finding.problem:
                continue  # an extended header before it names another member
            was, are = whole.files[finding.file], now[finding.file]
            if finding.key and len(was) == len(are):
                a, b = finding.start, finding.stop
                assert are[a:b] != was[a:b], (hint, finding)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_a_shard_find_the_same(kind, originals, tmp_path, monkeypatch):
    """Shards over 64 MB are divided; here, all of them, into more parts than they have members."""
    whole = originals[kind]
    for number, way in enumerate(WAYS):
        folder = whole.restore(tmp_path / "harmed")
        harm(folder / whole.shards[1], way, random.Random(f"{kind} {way}"))
        reports = []
        for part in (1 << 30, 1500):
            monkeypatch.setattr(shard_job, "PART_BYTES", part)
            report = datapipe.verify_dataset(folder, deep=number % 2 == 1, workers=2)
            reports.append(replace(report, seconds=0))
        assert reports[0] == reports[1], way


def test_an_empty_shard_is_damage(harmed):
    """It is the first that a thread looks at."""
    (harmed / "shard-000000.tar").write_bytes(b"")
    report = datapipe.verify_dataset(harmed, workers=1)
    assert report.damaged_samples == 4
    assert {finding.file for finding in report.findings} == {"shard-000000.tar"}


@pytest.mark.parametrize("at", [0, 134], ids=["name", "size"])
@pytest.mark.parametrize("kind", ["packed", "gnu"])
def test_a_header_of_another_member_is_damage_though_its_checksum_is_right(
    kind, at, originals, tmp_path
):
    folder = originals[kind].restore(tmp_path / "harmed")
    flip(min(folder.glob("*.tar")), at)  # another letter, or another last digit of the size
    sum_first_header(min(folder.glob("*.tar")))
    assert not datapipe.verify_dataset(folder).is_whole


def sum_first_header(tar):
    """Give the first header of a tar the checksum that it should have."""
    data = bytearray(tar.read_bytes())
    data[148:156] = b" " * 8  # as the checksum counts itself
    data[148:156] = b"%06o\0 " % sum(data[:512])
    tar.write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_with_keys_of_its_own_is_whole_or_damaged_as_its_shards_are(
    kind, originals, tmp_path
):
    whole, view = originals[kind].restore(tmp_path / "harmed"), tmp_path / "view"
    datapipe.merge_datasets([whole], view, prefixes=["a-"], output=datapipe.CopySpec(view=True))
    for report in (datapipe.verify_dataset(whole), datapipe.verify_dataset(view, deep=True)):
        assert (report.findings, report.notes) == ((), ())
        assert (report.samples, report.members, report.files) == (12, 24, 3)
    first = originals[kind].samples[0]
    damaged_file(whole, first.shard, first.spans[0][0] - 200)  # in its header
    found = datapipe.verify_dataset(view).findings
    assert [finding.key for finding in found] == [f"a-{first.key}"]


def test_a_name_of_no_sample_is_damage_in_a_view_too(originals, tmp_path):
    whole, view = originals["gnu"].restore(tmp_path / "harmed"), tmp_path / "view"
    datapipe.merge_datasets([whole], view, prefixes=["a-"], output=datapipe.CopySpec(view=True))
    with min(whole.glob("*.tar")).open("r+b") as shard:
        shard.write(b"README".ljust(100, b"\0"))
    sum_first_header(min(whole.glob("*.tar")))
    (finding,) = datapipe.verify_dataset(view).findings
    assert finding.key == f"a-{originals['gnu'].samples[0].key}"


def found_in(folder, **options):
    return {f.file: f.problem for f in datapipe.verify_dataset(folder, **options).findings}


@pytest.mark.parametrize("name", ["dataset.json", "*1.parquet", "columns/member_crc32.npy"])
@pytest.mark.parametrize("way", ["damaged", "lost"])
def test_shards_are_checked_where_other_files_are_damaged(name, way, harmed, whole):
    (path,) = harmed.glob(name)
    damaged_file(harmed, name) if way == "damaged" else path.unlink()
    relative = path.relative_to(harmed).as_posix()
    assert list(found_in(harmed)) == [relative]
    damaged_file(harmed, "*1.tar", whole.samples[4].spans[0][0] + 100)
    report = datapipe.verify_dataset(harmed)
    named = {(f.file, f.key) for f in report.findings}
    assert named == {(relative, ""), ("shard-000001.tar", "000000004")}
    assert report.damaged_samples == 1


def test_a_shard_without_any_index_is_checked_by_its_headers(harmed, whole):
    for path in (*harmed.glob("*.parquet"), *harmed.glob("columns/*"), harmed / "dataset.json"):
        path.unlink()
    found = found_in(harmed)
    assert set(found) == {"dataset.json", *(f"shard-00000{n}.parquet" for n in range(3))}
    assert "cannot be checked" in found["shard-000001.parquet"]
    assert "repair --in-place --unchecked" in next_step(datapipe.verify_dataset(harmed))
    damaged_file(harmed, "*1.tar", whole.samples[4].spans[1][0] - 400)  # in a header
    assert "a header is damaged" in found_in(harmed)["shard-000001.tar"]
    damaged_file(harmed, "*2.tar", whole.samples[8].spans[0][0] + 3)  # in the markers of a JPEG
    assert "shard-000002.tar" not in found_in(harmed)
    assert "shard-000002.tar" in found_in(harmed, deep=True)


def test_arrays_are_compared(tmp_path, whole):
    arrays = tmp_path / "arrays"
    datapipe.convert_dataset(whole.folder, arrays, image=ImageSpec(size=8))
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


def test_damage_behind_a_url_is_named(tmp_path, harmed, whole):
    with serving(harmed) as server:
        assert datapipe.verify_dataset(server.url, deep=True).is_whole
    url = f"memory:/{tmp_path}/shards"
    damaged_file(harmed, "*1.tar", whole.samples[4].spans[0][0] + 100)
    harm(harmed / "shard-000000.tar", "cut", random.Random(1))
    (harmed / "shard-000002.parquet").unlink()
    fsspec.filesystem("memory").put(str(harmed), url, recursive=True)
    here, there = (datapipe.verify_dataset(path) for path in (harmed, url))
    # The columns stay here: there, a shard without its index is checked by its headers.
    assert {str(f) for f in here.findings if "parquet" not in f.file} == {
        str(f) for f in there.findings if "parquet" not in f.file
    }
    assert {f.file for f in there.findings if not f.key} == {
        "shard-000000.tar",
        "shard-000002.parquet",
    }


def test_a_server_without_ranges_is_refused_and_not_called_damage(harmed):
    with serving(harmed) as server:
        server.fault = lambda number, name: "whole"
        with pytest.raises(datapipe.StoreError, match="sends only whole files"):
            datapipe.verify_dataset(server.url)


def test_token_counts_are_compared(harmed, tokenizer):
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=4)
    datapipe.make_loader(harmed, batch_size=2, text=text, num_workers=0)
    assert datapipe.verify_dataset(harmed).is_whole
    counted = next(harmed.glob("tokens-*"))
    damaged_file(counted, "text_tokens.npy")
    assert list(found_in(harmed)) == [f"{counted.name}/text_tokens.npy"]


@pytest.fixture
def scored(tmp_path, make_tar):
    """Two tars of someone else with a record a sample, whose field `score` is indexed."""
    for first in (0, 3):
        records = [(f"{n}.json", json.dumps({"score": n, "text": "a"}).encode()) for n in range(3)]
        make_tar(tmp_path / "tars" / f"{first}.tar", [(f"{first}-{n}", c) for n, c in records])
    datapipe.index_fields(tmp_path / "tars", "score")
    return tmp_path / "tars"


@pytest.mark.parametrize("way", ["flip", "cut", "remove"])
def test_columns_of_fields_are_compared(scored, way):
    assert datapipe.verify_dataset(scored, deep=True).is_whole
    path = sorted(scored.glob("fields/*/*.arrow"))[0]
    harm(path, way, random.Random(0))
    assert list(found_in(scored)) == [path.relative_to(scored).as_posix()]
    where = {"where": "score > 1", "batch_size": 1, "image": None, "num_workers": 0}
    assert len(datapipe.make_loader(scored, **where)) == 2
    assert datapipe.verify_dataset(scored, deep=True).is_whole


def test_columns_of_fields_with_other_values_are_found_by_deep(scored):
    """Their own checksum is right: they hold the values of another shard with as many samples."""
    (about,) = scored.glob("fields/*/field.json")
    files = FieldFiles(scored / "fields", "score")
    shard = datapipe.index.manifest.read_manifest(scored).shards[1]
    files.write(shard, pa.array([0, 1, 3]))
    assert datapipe.verify_dataset(scored).is_whole
    report = datapipe.verify_dataset(scored, deep=True)
    (finding,) = report.findings
    assert next_step(report).startswith("remove these files")
    assert finding.file == files.path(shard).relative_to(scored).as_posix()
    assert finding.problem.startswith("field 'score' differs from the records of 3.tar; remove")
    files.write(shard, pa.array([0, 1]))  # one sample less
    assert list(found_in(scored)) == [finding.file]
    damaged_file(about.parent, about.name, 20)
    assert list(found_in(scored)) == [about.relative_to(scored).as_posix()]
    repaired = datapipe.repair_dataset(scored, in_place=True)
    assert repaired.remade == (about.relative_to(scored).as_posix(),)
    assert datapipe.verify_dataset(scored).is_whole


def test_columns_of_another_index_are_named(harmed):
    """Their own checksums are right."""
    columns = harmed / "columns"
    sizes = np.load(columns / "member_size.npy", mmap_mode="r+")
    sizes[5] += 1
    sizes.flush()
    about = unseal((columns / "columns.json").read_bytes())
    about["checksums_crc32"] = write_sums(columns, [f"{name}.npy" for name in DTYPES])
    (columns / "columns.json").write_text(seal(about))
    assert list(found_in(harmed)) == ["columns/"]


def test_columns_of_an_earlier_manifest_are_no_damage(tmp_path, make_folder, harmed):
    before = {path.name: path.read_bytes() for path in (harmed / "columns").iterdir()}
    datapipe.pack_dataset(make_folder(tmp_path / "more", 2), harmed, append=True, workers=1)
    for name, content in before.items():
        (harmed / "columns" / name).write_bytes(content)
    assert datapipe.verify_dataset(harmed).is_whole


def test_an_image_that_training_cannot_decode_is_found_by_deep(tmp_path, make_tar, jpeg):
    cut = jpeg(1)[:-300]
    members = [("a.jpg", jpeg(0)), ("a.txt", b"whole"), ("b.jpg", cut), ("b.txt", b"cut")]
    make_tar(tmp_path / "tars" / "0.tar", members)
    datapipe.index_shards(tmp_path / "tars")
    assert datapipe.verify_dataset(tmp_path / "tars").is_whole
    (finding,) = datapipe.verify_dataset(tmp_path / "tars", deep=True).findings
    assert (finding.key, finding.member) == ("b", "b.jpg")
    assert finding.problem.startswith("its checksum is right, but JPEG is damaged")


def test_members_that_are_read_part_by_part_are_compared(tmp_path, make_tar, jpeg):
    """Those over 64 MB are."""
    members = [("b.jpg", jpeg(0) + bytes(65 << 20)), *((f"{key}.txt", b"a") for key in "bc")]
    tar = make_tar(tmp_path / "tars" / "0.tar", [("a.txt", b"a"), *members])
    datapipe.index_shards(tmp_path / "tars")
    assert datapipe.verify_dataset(tmp_path / "tars").is_whole
    with tar.open("r+b") as file:
        file.seek(65 << 20)
        file.write(b"\1")
    report = datapipe.verify_dataset(tmp_path / "tars")
    assert [(f.key, f.member) for f in report.findings] == [("b", "b.jpg")]
    os.truncate(tar, 60 << 20)
    report = datapipe.verify_dataset(tmp_path / "tars")
    assert {finding.key for finding in report.findings if finding.key} == {"b", "c"}
    assert report.damaged_samples == 2


def test_bytes_that_the_disk_cannot_read_are_named(monkeypatch, whole):
    bad = whole.samples[5].spans[0][0] + 10  # in the second shard
    path = str(whole.folder / "shard-000001.tar")
    real = os.preadv

    def preadv(descriptor, buffers, offset):
        holds = offset <= bad < offset + len(buffers[0])
        if holds and os.readlink(f"/proc/self/fd/{descriptor}") == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    report = datapipe.verify_dataset(whole.folder)
    assert [(f.key, f.problem) for f in report.findings if f.key] == [
        ("000000005", "cannot be read: Input/output error")
    ]
    assert report.damaged_samples == 1


def test_the_command_names_damage_and_the_next_step(run, whole, harmed, tmp_path):
    begin = whole.samples[4].spans[0][0]
    damaged_file(harmed, "*1.tar", begin + 100)
    told = run("verify", harmed)
    assert (told.exit_code, told.stderr) == (1, "")
    assert "shard-000001.tar: sample 000000004, 000000004.jpg, bytes 512 to" in told.stdout
    assert f"datapipe repair {harmed} NEW_FOLDER" in told.stdout
    told = run("repair", harmed, tmp_path / "out")
    assert told.exit_code == 1
    assert "pack again (1 input): 004.jpg" in told.stdout
    told = run("verify", tmp_path / "out", "--json")
    assert told.exit_code == 0
    fields = json.loads(told.stdout)
    assert (fields["whole"], fields["samples"], fields["findings"]) == (True, 11, [])
    told = run("repair", tmp_path / "out")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "--in-place" in told.stderr


def test_an_interrupt_ends_quietly(whole):
    program = (
        "import datapipe, sys, signal, os\n"
        "from datapipe.cli import main\n"
        "from datapipe.inspect import verify\n"
        "verify.locate = lambda path: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.argv = ['datapipe', 'verify', {str(whole.folder)!r}]\n"
        "main()\n"
    )
    told = python(program)
    assert (told.returncode, told.stdout) == (130, "")
    assert told.stderr == "\nInterrupted; the dataset is as it was.\n"


@pytest.mark.parametrize("own", [True, False])
def test_each_byte_of_a_header_and_of_padding_counts(own):
    members = (("000000000.jpg", 8**6 + 5), ("000000000.json", 0), ("000000001.jpg", 1023))
    headers = [member_header(*member) for member in members]
    between = bytearray(headers[0] + bytes(BLOCK - 5) + headers[1] + headers[2])
    starts = np.array([0, 2 * BLOCK - 5, 3 * BLOCK - 5])
    names = [list(name.encode().ljust(MAX_NAME, b"\0")) for name, _ in members]
    given = starts, np.array(names, np.uint8), np.array([size for _, size in members])
    assert are_plain(between, *given, own=own).tolist() == [True] * 3
    for at in range(len(between)):
        between[at] ^= 1
        found = are_plain(between, *given, own=own)
        between[at] ^= 1
        harmed = 0 if at < BLOCK else 1 if at < 3 * BLOCK - 5 else 2
        assert np.flatnonzero(~found).tolist() == [harmed]
