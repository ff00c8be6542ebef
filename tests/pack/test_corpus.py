"""Whatever an input is, it is packed or named with a reason in `rejects.jsonl`."""

import json
import re
import tarfile

import pyarrow.parquet as pq
import pytest

from datapipe.decode.image import decode_rgb
from datapipe.errors import DatapipeError, DecodeError
from datapipe.index.images.header import is_image_extension
from datapipe.pack.pack_dataset import pack_dataset

from .corpus import EITHER, Case
from .corpus.archives import damaged_tars, make_tars
from .corpus.folders import make_folder
from .corpus.images import LIMIT, image_cases
from .corpus.records import make_array, make_csv, make_images, make_lines

MEMBER = re.compile(r"[a-z0-9_][a-z0-9_-]*(\.[a-z0-9_-]+)+")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
DECODE, HEADER, MAX_SIDE = {}, {"check": "header"}, {"max_side": 64}


def pack(raw, out, **options):
    """Pack with one process and with two; what became of each source: a reason, or nothing."""
    options = {"max_rejects": 10**6, "max_pixels": LIMIT, **options}
    report = pack_dataset(raw, out, workers=2, **options)
    alone = out.with_name(f"{out.name}-alone")
    pack_dataset(raw, alone, workers=1, **options)
    ours, theirs = contents(out), contents(alone)
    assert [name for name in ours | theirs if ours.get(name) != theirs.get(name)] == []
    fates = packed(out, "header" not in options.values()) | rejected(out, raw)
    assert report.samples + report.rejected == report.inputs == len(fates)
    return fates


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def packed(out, decodes):
    """Sources of the samples, whose members are looked at."""
    sources = {}
    for index in sorted(out.glob("*.parquet")):
        rows = pq.read_table(index).to_pylist()
        with tarfile.open(index.with_suffix(".tar")) as tar:
            infos = {info.offset_data: info for info in tar}
            assert sum(len(row["ext"]) for row in rows) == len(infos)
            for row in rows:
                assert row["source"] not in sources
                sources[row["source"]] = ""
                sizes = iter(zip(row["image_height"], row["image_width"], strict=True))
                for ext, offset in zip(row["ext"], row["offset"], strict=True):
                    info = infos[offset]
                    assert info.isreg()
                    assert info.name == f"{row['key']}.{ext}"
                    assert MEMBER.fullmatch(info.name), info.name
                    assert len(info.name) <= 100
                    if is_image_extension(ext) and decodes:
                        data = tar.extractfile(info).read()
                        assert decode_rgb(data).shape[:2] == next(sizes), row["source"]
    return sources


def rejected(out, raw):
    """Reasons by source, each of which a person could understand."""
    fates = {}
    content = (out / "rejects.jsonl").read_bytes()
    assert not content or content.endswith(b"\n")
    for line in content.decode().split("\n")[:-1]:
        reject = json.loads(line)
        assert reject.keys() <= {"source", "reason", "error", "file"}
        source, reason = reject["source"], reject["reason"]
        assert source not in fates, source
        assert len(re.findall(r"[a-zA-Z]{2,}", reason)) >= 2, line
        assert not ADDRESS.search(line), line
        assert str(raw.parent) not in line, line
        assert len(line) < 10_000, source
        assert len(reason) < 500, source
        fates[source] = reason
    return fates


def check(fates, cases, *, decodes=True):
    """Compare what became of all inputs with what should have."""
    assert sorted(fates.keys() ^ cases.keys()) == []
    wrong = [
        f"{source}: {fates[source]!r} where {fate!r} was expected"
        for source, (content, fate, in_header) in cases.items()
        if (decodes or in_header) and not is_as_expected(fates[source], fate, content, decodes)
    ]
    assert not wrong, "\n".join(wrong)


def is_as_expected(found, expected, content, decodes):
    if expected != EITHER:
        return expected in found if expected else not found
    try:
        if decodes:
            decode_rgb(content, max_pixels=LIMIT)
    except DecodeError:
        return bool(found)
    return not decodes or not found


def compare(fates, expected):
    check(fates, {source: Case(b"", fate) for source, fate in expected.items()})


@pytest.mark.campaign
@pytest.mark.parametrize("options", [DECODE, HEADER, MAX_SIDE], ids=str)
def test_every_image_file_is_packed_or_rejected(tmp_path, raw, options):
    cases = image_cases()
    assert len({case.content for case in cases.values()}) > 250
    for name, case in cases.items():
        (raw / name).write_bytes(case.content)
    fates = pack(raw, tmp_path / "out", **options)
    check(fates, cases, decodes="check" not in options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (make_folder, DECODE),
        (make_folder, HEADER),
        (make_tars, DECODE),
        (make_tars, MAX_SIDE),
    ],
)
def test_every_file_of_a_folder_or_sample_of_a_tar_is_packed_or_rejected(tmp_path, make, options):
    expected = make(tmp_path / "raw")
    assert len(expected) > 130
    compare(pack(tmp_path / "raw", tmp_path / "out", **options), expected)


@pytest.mark.parametrize(
    ("make", "name", "layout", "options"),
    [
        (make_lines, "data.jsonl", "llava", DECODE),
        (make_lines, "data.jsonl", "chat", HEADER),
        (make_lines, "data.jsonl", "table", DECODE),
        (make_array, "data.json", "llava", MAX_SIDE),
        (make_array, "data.json", "chat", DECODE),
        (make_array, "data.json", "table", HEADER),
        (make_csv, "data.csv", None, DECODE),
    ],
)
def test_every_record_is_packed_or_rejected(tmp_path, make, name, layout, options):
    make_images(tmp_path / "raw")
    path = tmp_path / "raw" / name
    expected = make(path, layout) if layout else make(path)
    compare(pack(path, tmp_path / "out", format=layout, **options), expected)


@pytest.mark.parametrize("name", damaged_tars())
def test_a_damaged_tar_is_named_with_what_is_wrong(tmp_path, raw, name):
    content, words = damaged_tars()[name]
    (raw / "damaged.tar").write_bytes(content)
    with pytest.raises(DatapipeError, match=rf"damaged\.tar.*{words}"):
        pack(raw, tmp_path / "out")
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_what_no_part_of_a_chat_can_be_is_named_in_few_words(tmp_path):
    kinds = ["\ud800", "x" * 1_000_000, "a\nb", "", [], 5]
    contents = ["Hello", *([{"type": kind}] for kind in kinds)]
    chats = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    raw = tmp_path / "raw.jsonl"
    raw.write_text("\n".join(map(json.dumps, chats)))
    assert [not fate for fate in pack(raw, tmp_path / "out").values()] == [True] + [False] * 6


def test_odd_values_of_keys_give_plain_names(tmp_path):
    missing = ["", None, [], {}]
    values = ["a", "a", "../../x", "/etc/passwd", "x" * 500, "-rf", 5, 1.5, True, *missing]
    values += ["größe", "a\nb", ".", "..", "CON", float("nan"), 10**400, "\0", " "]
    turns = [{"from": "human", "value": "Hello"}]
    raw = tmp_path / "raw.jsonl"
    raw.write_text("\n".join(json.dumps({"id": v, "conversations": turns}) for v in values))
    reason = "`id`, which the key is taken from"
    expected = {f"raw.jsonl#{n}": reason if v in missing else "" for n, v in enumerate(values)}
    compare(pack(raw, tmp_path / "out", key_from="id"), expected)


@pytest.mark.campaign
@pytest.mark.parametrize("depth", [100, 440, 460, 480, 490, 500, 2000])
@pytest.mark.parametrize("odd", ["1", "NaN"])
def test_a_record_that_is_too_deep_ends_nothing_but_itself(tmp_path, depth, odd):
    turns = '"conversations": [{"from": "human", "value": "Hello"}]'
    lines = [
        f'{{{turns}, "odd": {odd}, "deep": {opening * n}1{closing * n}}}'
        for n in range(depth, depth + 10)
        for opening, closing in (('{"a":', "}"), ("[", "]"))
    ]
    (tmp_path / "raw.jsonl").write_text("\n".join([f"{{{turns}}}", *lines * 7]))
    report = pack_dataset(tmp_path / "raw.jsonl", tmp_path / "out", workers=2, max_rejects=200)
    assert report.samples + report.rejected == 141
