"""img2dataset's shards: tar or folder and table are joined, and failed downloads are rejects."""

import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import PackError, pack_dataset
from datapipe.errors import StoreError
from datapipe.pack.input.raw_sample import RawSample, Reject
from datapipe.pack.readers.img2dataset import READER

from .reading import choose_reader, estimate, recognises
from .reading import read as read_inputs
from .record_files import write

# The columns that version 1.47 writes, with one that the user asked to keep.
SCHEMA = pa.schema(
    [("score", pa.float64())]
    + [(name, pa.string()) for name in ("caption", "url", "key", "status", "error_message")]
    + [(name, pa.int32()) for name in ("width", "height", "original_width", "original_height")]
    + [(name, pa.string()) for name in ("exif", "sha256")]
)

NOT_FOUND = "HTTP Error 404: File not found"
ASSERTION = "OpenCV(4.14.0) /io/opencv/loadsave.cpp:1310: error: (-215)\n in function 'imdecode_'\n"


read = partial(read_inputs, READER)


def sources(taken, kind):
    return [one.source for one in taken if isinstance(one, kind)]


def row(number, status="success", message=None, **fields):
    """A row of the table; `fields` replace what img2dataset would write."""
    made = dict.fromkeys(SCHEMA.names) | {"key": f"{number:09d}", "score": number / 8}
    made |= {"caption": f"größe {number}", "url": f"http://host/{number}.jpg"}
    made |= {"status": status, "error_message": message}
    if status == "success":
        made |= {"width": 40, "height": 30, "exif": "{}", "sha256": f"{number:064d}"}
    return made | fields


# Downloads end in another order than they begin.
ROWS = [
    row(2),
    row(3, "failed_to_download", NOT_FOUND),
    row(0),
    row(5, "failed_to_resize", ASSERTION),
    row(4, caption=None),
    row(1, "failed_to_download"),
]


@pytest.fixture
def make_shard(raw, jpeg, make_tar, put):
    """Writes one shard as img2dataset does; `without` leaves members out of it."""

    def make(rows, name="00000", files=False, without=(), extra=()):
        members = []
        for row in (row for row in rows if row["status"] == "success"):
            members += [
                (f"{row['key']}.jpg", jpeg(int(row["score"] * 8))),
                (f"{row['key']}.json", json.dumps(row, indent=4).encode()),
                (f"{row['key']}.txt", (row["caption"] or "").encode()),
            ]
        members = [m for m in members if m[0] not in without] + list(extra)
        if files:
            put(raw / name, dict(members))
        else:
            make_tar(raw / f"{name}.tar", members)
        write(raw / f"{name}.parquet", rows, SCHEMA)
        return put(raw, {f"{name}_stats.json": {"count": len(rows)}})

    return make


@pytest.mark.parametrize("files", [False, True])
def test_a_shard_is_packed_with_its_failures_as_rejects(
    tmp_path, make_shard, files, members, rejects, jpeg
):
    raw = make_shard(ROWS, files=files)
    assert choose_reader(raw) is READER
    assert estimate(READER, raw) == 6
    report = pack_dataset(raw, tmp_path / "out", max_rejects=3)
    assert (report.samples, report.rejected) == (3, 3)
    packed = list(members(tmp_path / "out").values())
    order = [0, 2, 4] if files else [2, 0, 4]
    assert [sample["jpg"] for sample in packed] == [jpeg(number) for number in order]
    texts = {0: "größe 0", 2: "größe 2", 4: ""}
    assert [sample["txt"].decode() for sample in packed] == [texts[number] for number in order]
    by_key = {row["key"]: row for row in ROWS}
    assert [json.loads(s["json"]) for s in packed] == [by_key[f"{n:09d}"] for n in order]
    failed = [
        (3, f"failed_to_download: {NOT_FOUND}", "MissingMember"),
        (5, "failed_to_resize: " + " ".join(ASSERTION.split()), "DecodeError"),
        (1, "failed_to_download", "MissingMember"),
    ]
    assert rejects(tmp_path / "out") == [
        {"source": f"00000.parquet:{n:09d}", "reason": f"img2dataset: {reason}", "error": error}
        for n, reason, error in failed
    ]


@pytest.mark.parametrize("files", [False, True])
def test_a_sample_without_metadata_takes_its_row(make_shard, files):
    raw = make_shard(ROWS, files=files, without=["000000000.json", "000000004.txt"])
    samples = {s.source[-1]: s for s in read(raw) if isinstance(s, RawSample)}
    assert samples["0"].record == ROWS[2]
    assert samples["4"].caption is None
    assert samples["2"].record.read() == json.dumps(ROWS[0], indent=4).encode()


def test_rows_and_members_that_miss_each_other_and_keys_that_come_again(make_shard, jpeg):
    gone = [f"000000002.{ext}" for ext in ("jpg", "json", "txt")]
    again = [("000000004.jpg", jpeg(9)), ("000000004.json", b"{}"), ("000000004.txt", b"9")]
    extra = [("000000009.jpg", jpeg(9)), *again, ("000000000.jpg", jpeg(9)), ("README", b"")]
    taken = read(make_shard(ROWS, without=gone, extra=extra))
    keys = ("000000000", "000000004", "000000009", "000000004#2")  # the third has no row
    assert sources(taken, RawSample) == [f"00000.tar:{key}" for key in keys]
    lost = {one.source: one.reason for one in taken if isinstance(one, Reject)}
    assert lost["00000.tar:README"] == "name has no key and extension"
    assert "with other members" in lost["00000.tar:000000000.jpg"]
    assert lost["00000.parquet:000000002"] == (
        "img2dataset: status is success, but 00000.tar does not hold it"
    )
    assert len(lost) == 6


@pytest.mark.parametrize("without", [(), ("000000002.json",)])
def test_a_key_is_taken_from_the_table_or_without_one_from_the_metadata(make_shard, without):
    raw = make_shard(ROWS, without=without)
    taken = read(raw, key_from="sha256")
    assert [s.key for s in taken[:2]] == [ROWS[0]["sha256"], ROWS[2]["sha256"]]
    (raw / "00000.parquet").unlink()
    first, second, _ = read(raw, key_from="sha256")
    assert second.key == ROWS[2]["sha256"]
    if without:
        assert (first.source, first.error) == ("00000.tar:000000002", "MissingMember")


def test_keys_that_became_numbers_are_matched(make_shard):
    raw = make_shard(ROWS)
    table = pq.read_table(raw / "00000.parquet")
    keys = pa.array([int(key) for key in table["key"].to_pylist()])
    table = table.set_column(table.schema.get_field_index("key"), "key", keys)
    pq.write_table(table, raw / "00000.parquet")
    assert sources(read(raw), Reject) == [f"00000.parquet:00000000{n}" for n in (3, 5, 1)]


# --- shards that are not as they should be ----------------------------------------------------


@pytest.fixture
def interrupt(make_shard):
    """A finished shard, and one in which a killed download stopped."""

    def make(files=False, table=b"PAR1\x15\x04\x15\x88"):
        make_shard([row(0)], "00000", files)
        raw = make_shard([row(n, key=f"00001000{n}") for n in range(3)], "00001", files)
        (raw / "00001_stats.json").unlink()
        (raw / "00001.parquet").write_bytes(table)
        return raw

    return make


@pytest.mark.parametrize("table", [b"", b"PAR1\x15\x04\x15\x88"])
def test_of_an_interrupted_download_whole_samples_are_packed(interrupt, table):
    raw = interrupt(table=table)
    tar = (raw / "00001.tar").read_bytes()
    assert choose_reader(raw) is READER
    end = tar.index(b"000010002.txt")
    for size in (*range(600, end + 1024, 512), *range(end, end + 700, 100)):
        (raw / "00001.tar").write_bytes(tar[:size])
        taken = read(raw)
        assert sources(taken, Reject)[-1] == "00001.parquet"
        assert "run it again to finish it" in taken[-1].reason
        whole = sources(taken, RawSample)
        keys = [f"00001.tar:00001000{number}" for number in range(3)]
        assert whole == ["00000.tar:000000000", *keys][: len(whole)]
        # A sample is only taken when the next one has begun.
        begun = [f"00001000{n}.jpg".encode() in tar[: size - 511] for n in (1, 2)]
        assert len(whole) <= 1 + sum(begun)
        assert len(sources(taken, Reject)) in (1, 2)


def test_an_interrupted_download_into_files(interrupt):
    raw = interrupt(files=True)
    (raw / "00001" / "000010001.json").unlink()
    taken = read(raw)
    assert sources(taken, RawSample) == ["00000/000000000", "00001/000010000", "00001/000010002"]
    assert sources(taken, Reject) == ["00001/000010001", "00001.parquet"]


@pytest.mark.parametrize(
    ("size", "said"), [(3000, r", byte \d+: the file ends inside"), (0, " is empty")]
)
def test_a_tar_that_was_finished_and_is_cut_off_is_refused(make_shard, size, said):
    raw = make_shard(ROWS)
    (raw / "00000.tar").write_bytes((raw / "00000.tar").read_bytes()[:size])
    with pytest.raises(StoreError, match=r"00000\.tar" + said):
        read(raw)


def test_a_table_that_is_damaged_or_cannot_be_read_is_refused(make_shard):
    make_shard(ROWS)
    raw = make_shard([row(0, key="000010000")], "00001")
    assert estimate(READER, raw) == 12
    (raw / "00000.parquet").write_bytes(b"PAR1 and no more")
    assert estimate(READER, raw) == 2  # by the first that can be read
    assert choose_reader(raw) is READER
    with pytest.raises(PackError, match=r"00000.parquet is damaged"):
        read(raw)
    (raw / "00000.parquet").unlink()
    (raw / "00000.parquet").symlink_to("/proc/self/mem")  # which cannot be read at its start
    with pytest.raises(PackError, match=r"00000.parquet: cannot be read: Input/output error"):
        read(raw)


def test_a_shard_that_is_tar_and_folder_is_refused(make_shard):
    raw = make_shard(ROWS)
    (raw / "00000").mkdir()
    with pytest.raises(PackError, match=r"00000.tar and .*00000 are the same shard"):
        read(raw)


def test_other_tars_in_the_folder_are_rejected_by_name(make_shard, make_tar, jpeg):
    raw = make_shard(ROWS)
    make_tar(raw / "more.tar", [("a.jpg", jpeg(0))])
    assert (read(raw)[-1].source, read(raw)[-1].error) == ("more.tar", "DecodeError")


# --- recognition ------------------------------------------------------------------------------


def test_tars_beside_other_tables_are_webdataset(make_shard):
    raw = make_shard(ROWS)
    table = pq.read_table(raw / "00000.parquet").drop_columns("status")
    pq.write_table(table, raw / "00000.parquet")
    assert choose_reader(raw).name == "webdataset"


@pytest.mark.parametrize("name", ["nothing", "file", "."])
def test_what_is_no_folder_of_shards_is_refused(raw, name):
    if name == "file":
        (raw / name).touch()
    assert not recognises(READER, raw / name)
    with pytest.raises(PackError, match=r"cannot be read|no shard such as 00000.tar"):
        read(raw / name)
