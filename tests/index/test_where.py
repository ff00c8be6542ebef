"""`where=` keeps the samples that Python or SQL would keep, and says what is wrong and where."""

import errno
import json
import multiprocessing
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.index.columns import Columns
from datapipe.index.where import evaluate, parse_where, select, select_where
from datapipe.plan.selection import Selection, build_directory

Row = tuple[str, str, list[tuple[int, int]], int]  # key, source, sizes of images, bytes of text

ROWS: list[Row] = [
    ("000", "coco/train/1.jpg", [(640, 480)], 10),
    ("001", "coco/val/2.jpg", [(336, 336), (20, 10)], 0),
    ("002", "llava.json#7", [], 300),
    ("003", "ocr/ä.png", [(1000, 100)], 4000),
    ("004", "", [(48, 0)], 1),
    ("005", "coco.json", [(335, 700), (9, 9), (5, 5)], 77),
]
TOKENS = np.array([5, 2, 100, 4096, -1, 30], np.int32)
EXTRA = {"text_tokens": lambda span: TOKENS[span]}


def columns_of(rows: list[Row], shards: Iterable[int] = ()) -> Columns:
    """Columns of these samples, in shards of so many."""

    def offsets(lengths: Iterable[int]) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(list(lengths), dtype=np.int64))).astype(np.int64)

    def encoded(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        every = [text.encode() for text in texts]
        return offsets(map(len, every)), np.frombuffer(b"".join(every), np.uint8)

    keys, sources = encoded([row[0] for row in rows]), encoded([row[1] for row in rows])
    sizes = [size for row in rows for size in row[2]]
    no_members = np.zeros(0, np.int64)
    return Columns(
        extensions=(),
        checksums=True,
        shard_sample=offsets(shards or [len(rows)]),
        sample_member=np.zeros(len(rows) + 1, np.int64),
        sample_image=offsets(len(row[2]) for row in rows),
        sample_key=keys[0],
        sample_source=sources[0],
        text_bytes=np.array([row[3] for row in rows], np.int64),
        key_bytes=keys[1],
        source_bytes=sources[1],
        member_offset=no_members,
        member_size=no_members,
        member_crc32=no_members.astype(np.uint32),
        member_ext=no_members.astype(np.uint16),
        image_width=np.array([width for width, _ in sizes], np.int32),
        image_height=np.array([height for _, height in sizes], np.int32),
    )


COLUMNS = columns_of(ROWS, shards=[2, 0, 4])


def kept(expression: str, columns: Columns = COLUMNS) -> list[int]:
    """Numbers of the samples that an expression keeps."""
    samples = len(columns.sample_key) - 1
    return np.flatnonzero(evaluate(parse_where(expression), columns, EXTRA, 0, samples)).tolist()


@pytest.mark.parametrize(
    ("expression", "samples"),
    [
        ("width >= 336", [0, 1, 3]),
        ("width >= 336 and text_tokens < 4096", [0, 1]),
        ("width >= 336 and not text_tokens < 4096", [3]),
        ("300 < width <= height", [1, 5]),
        ("width > height or images == 0", [0, 2, 3]),
        ("pixels == 336 * 336", [1]),
        ("aspect > 1.3", [0, 3]),
        ("aspect == width / height", [0, 1, 3, 5]),
        ("images >= 2", [1, 5]),
        ("text_bytes + 1 > 300", [2, 3]),
        ("(text_bytes + 1) * 2 // 3 % 2 == 1", [0, 3, 4]),
        ("-text_bytes <= -300", [2, 3]),
        ("+text_bytes == 77", [5]),
        ("width in (640, 336)", [0, 1]),
        ("width in [640.0]", [0]),
        ("width not in {640, 336}", [3, 5]),
        ("text_bytes in (-1, 0)", [1]),
        ("width is None", [2, 4]),
        ("height is not None", [0, 1, 3, 5]),
        ("text_tokens is None", [4]),
        ('source == "coco.json"', [5]),
        ('source != "coco.json"', [0, 1, 2, 3, 4]),
        ('"coco.json" == source', [5]),
        ('"coco" in source', [0, 1, 5]),
        ('"coco" not in source', [2, 3, 4]),
        ('"ä" in source', [3]),
        ('"." in source', [0, 1, 2, 3, 5]),
        ('source in ("coco.json", "llava.json#7", "")', [2, 4, 5]),
        ('source not in ("coco.json", "llava.json#7")', [0, 1, 3, 4]),
        ('source.startswith("coco/")', [0, 1]),
        ('not source.startswith(("coco/", "ocr"))', [2, 4, 5]),
        ('source.endswith(".jpg")', [0, 1]),
        ('key.endswith(("1", "5"))', [1, 5]),
        ('"001" <= key < "004"', [1, 2, 3]),
        ('"003" < key', [4, 5]),
        ("shard == 0", [0, 1]),
        ("shard == 2 and images == 1", [3, 4]),
        ("key == key", [0, 1, 2, 3, 4, 5]),
        ("1 < 2", [0, 1, 2, 3, 4, 5]),
        ("width >= 1e3", [3]),
        ("images != 0 and text_bytes // images > 20", [3, 5]),
        ("images == 0 or text_bytes / images < 1", [1, 2]),
        ("width >= 336 and (\n  height >= 336\n)  # large both ways", [0, 1]),
        ("width >= 336\n  and height >= 336", [0, 1]),
    ],
)
def test_an_expression_keeps_the_samples_it_says(expression: str, samples: list[int]) -> None:
    assert kept(expression) == samples


# Python is the oracle where every sample has every number, SQL where some are missing.

NAMES = ("width", "height", "images", "text_bytes")
KNOWN = [row for row in ROWS if row[2] and row[2][0][1]]


def numbers() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(NAMES) | st.integers(-5, 1000).map(str) | st.sampled_from(["0.5", "2."])
    operators = st.sampled_from(["+", "-", "*", "//", "%", "/"])
    return st.recursive(
        leaf,
        lambda inner: (
            st.tuples(inner, operators, inner).map(lambda parts: f"({' '.join(parts)})")
            | inner.map(lambda part: f"-{part}")
        ),
        max_leaves=4,
    )


COMPARED = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def conditions(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.sampled_from(["and", "or"])
    return st.recursive(
        leaves,
        lambda inner: (
            st.tuples(inner, joined, inner).map(lambda parts: f"({' '.join(parts)})")
            | inner.map(lambda part: f"(not {part})")
        ),
        max_leaves=6,
    )


COMPARISONS = st.tuples(numbers(), COMPARED, numbers()).map(" ".join) | st.tuples(
    numbers(), COMPARED, numbers(), COMPARED, numbers()
).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(expression=conditions(COMPARISONS))
def test_python_keeps_the_same_samples(expression: str) -> None:
    columns = columns_of(KNOWN)
    expected = []
    for number, (_, _, sizes, text) in enumerate(KNOWN):
        row = dict(zip(NAMES, (*sizes[0], len(sizes), text), strict=True))
        try:
            if eval(expression, {}, row):
                expected.append(number)
        except ZeroDivisionError:
            with pytest.raises(PlanError, match="divides by zero at sample"):
                kept(expression, columns)
            return
    assert kept(expression, columns) == expected


SQL_LEAVES = st.tuples(
    st.sampled_from(["width", "height", "images", "width + height"]),
    COMPARED,
    st.sampled_from(["336", "height", "0", "text_bytes * 2"]),
).map(" ".join) | st.sampled_from(
    ["width in (336, 640)", "height not in (336, 100)", "width is None", "height is not None"]
)


@settings(deadline=None, max_examples=300)
@given(expression=conditions(SQL_LEAVES))
def test_a_missing_number_is_neither_more_nor_less_as_in_sql(expression: str) -> None:
    base = sqlite3.connect(":memory:")
    base.execute("create table samples (number, width, height, images, text_bytes)")
    for number, (_, _, sizes, text) in enumerate(ROWS):
        first = sizes[0] if sizes and sizes[0][1] else (None, None)
        base.execute("insert into samples values (?,?,?,?,?)", (number, *first, len(sizes), text))
    sql = expression.replace("==", "=").replace("is None", "is null")
    sql = sql.replace("is not None", "is not null")
    rows = base.execute(f"select number from samples where {sql} order by number").fetchall()
    assert kept(expression) == [number for (number,) in rows]


@given(start=st.integers(0, 6), length=st.integers(0, 6))
def test_a_stretch_is_judged_as_in_the_whole(start: int, length: int) -> None:
    stop = min(start + length, 6)
    for expression in (
        "width >= 336",
        '"coco" in source',
        "text_tokens > 2",
        "shard == 2",
        "1 < 2",
    ):
        where = parse_where(expression)
        whole = evaluate(where, COLUMNS, EXTRA, 0, 6)
        part = evaluate(where, COLUMNS, EXTRA, start, stop)
        assert part.dtype == np.bool_
        assert part.tolist() == whole[start:stop].tolist()


def test_spaces_quotes_and_needless_parentheses_make_no_other_expression() -> None:
    forms = [
        "width>=336 and source in ('a','b')",
        ' (width  >= 336)   and source in ("a", "b") ',
        "width >= 0x150 and\r\n source in ('a', 'b',)",
    ]
    parsed = [parse_where(form) for form in forms]
    assert len({str(where) for where in parsed}) == 1
    assert len(set(parsed)) == 1
    assert parsed[0].columns == {"width", "source"}
    assert str(parse_where(str(parsed[0]))) == str(parsed[0])
    assert str(parse_where("width >= 337")) != str(parse_where("width >= 336"))


@pytest.mark.parametrize(
    ("expression", "character", "message"),
    [
        ("widht >= 336", 1, "no column 'widht'; there are width, "),
        ("images > 0 and hieght > 3", 16, "no column 'hieght'; there are height, "),
        ("'ä' in source and foo > 1", 19, "no column 'foo'; there are "),
        ("tokens < 10", 1, r"tokens needs text=TextSpec\("),
        ("key == 'a' or label_tokens > 0", 15, r"label_tokens needs text=TextSpec\("),
        ("'a' in tags", 8, "no column 'tags'"),
        ("tags.startswith('a')", 1, "no column 'tags'"),
        ('width > "a"', 1, r"width \(a number\) is compared with 'a' \(a string\)"),
        ("source == 3", 1, r"source \(a string\) is compared with 3"),
        ("width in (1, 'a')", 1, "is compared with 'a'"),
        ("source in (1, 2)", 1, "is compared with 1"),
        ("source + 'a' == 'b'", 1, "source .* is no number; only numbers"),
        ("-source == 'b'", 2, "is no number"),
        ("(width > 3) + 1 > 2", 2, "is no number"),
        ("(width > 3) == (height > 3)", 2, "join conditions with and, or, not"),
        ("width", 1, r"width \(a number\) is no condition; compare it"),
        ("width and height > 3", 1, "is no condition"),
        ("not source", 5, "is no condition"),
        ("width > 3 & images == 1", 9, "write `and`"),
        ("(width > 3) | (images == 1)", 1, "write `or`"),
        ("~(width > 3)", 1, "write `not`"),
        ("width ** 2 > 3", 1, "write the product out"),
        ("width @ 2 > 3", 1, "MatMult is not known here"),
        ("width == None", 10, "write `is None`"),
        ("width is 3", 10, "`is` is only for None"),
        ("key is None", 1, "never None"),
        ("width == True", 10, "True is not known here"),
        ("width == 1j", 10, "not known here"),
        ("key == b'a'", 8, "not known here"),
        ("'a' == 'b'", 1, "one must be a column"),
        ("'a' in ('a', 'b')", 1, "name a column"),
        ("width in ()", 10, "empty list"),
        ("width in (height, 3)", 11, "numbers or strings, nothing else"),
        ("width in height", 10, "needs a list"),
        ("'a' in 'abc'", 8, "needs a list"),
        ("source in key", 1, "write a string before `in key`"),
        ("(1, 2) == width", 1, "only stand after `in`"),
        ("key[0] == 'a'", 1, "cannot be indexed"),
        ("key.size == 3", 1, "have no attributes"),
        ("len(key) == 3", 1, "can be called"),
        ("key.upper() == 'A'", 1, "can be called"),
        ("width.startswith('3')", 1, "is a number and has no .startswith"),
        ("'a'.startswith('a')", 1, "needs a column of strings"),
        ("key.startswith(3)", 16, ".startswith takes a string"),
        ("key.startswith(())", 1, ".startswith takes a string"),
        ("key.startswith()", 1, ".startswith takes a string"),
        ("key.startswith('a', 1)", 1, ".startswith takes a string"),
        ("key.startswith(prefix='a')", 1, ".startswith takes a string"),
        ("width > 3 if images else 1", 1, "join conditions"),
        ("(lambda: 1)() > 3", 1, "can be called"),
        ("[width for width in (1,)] > 3", 1, "ListComp is not known here"),
        ("f'{key}' == 'a'", 1, "JoinedStr is not known here"),
        ("(x := 3) > 2", 2, "NamedExpr is not known here"),
        ("__import__('os').system('true') == 0", 1, "can be called"),
        ("width > 9223372036854775808", 9, "the number is too large"),
        ("width > 1e999", 9, "the number is too large"),
        (f"width in (1, {'9' * 400})", 14, "the number is too large"),
        (r"key == '\ud800'", 8, "half a character"),
        ("width >", 8, "write it as in Python"),
        ("width = 3", 7, "and, or, not, =="),
        ("width > 3 AND height > 3", 11, "write it as in Python"),
        ("width > 3) or (height > 3", 10, "unmatched"),
        ("width > 3; height > 3", 10, "write it as in Python"),
        ("images > 0 and\nsource == 'abc", 26, "unterminated"),
        ("images > 0 and\nfoo > 3", 16, "no column 'foo'"),
        ("text_bytes / images > 3", 1, "divides by zero at sample 002; put `images != 0 and`"),
        ("text_bytes % images > 3", 1, "divides by zero at sample 002"),
        ("width > 3 and 1 // (images - 1) > 3", 15, r"zero at sample 000; put `images - 1 != 0"),
        ("(width + 1) * 9000000000000000000 > 3", 1, "exceeds 64 bits at sample 000"),
        ("text_bytes + 9223372036854775807 > 3", 1, "exceeds 64 bits at sample 000"),
        ("-9223372036854775807 - text_bytes > 3", 1, "exceeds 64 bits at sample 000"),
        ("1e308 * 10 * width > 3", 1, "exceeds 64 bits"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    expression: str, character: int, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        evaluate(parse_where(expression), COLUMNS, {}, 0, len(ROWS))
    assert f"character {character}: " in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("expression", ["", "  \n ", 3, None, lambda width: width > 3])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(PlanError, match="where is"):
        parse_where(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 90_000,
        "-" * 90_000 + "width > 3",
        "not " * 20_000 + "width > 3",
        "width > 1" + " + 1" * 20_000,
        "width > " + "(" * 150 + "1 + " * 150 + "1" + ")" * 150,
        "width > 3 " + "and width > 3 " * 20_000,
        "a." * 40_000 + "b > 3",
        "lambda: " * 10_000 + "1",
        "width > 3 if width > 3 else " * 3000 + "1",
        "width > " + "[" * 180 + "]" * 180,
        "width \0> 3",
        "key == '\ud800'",
        "width > " + "9" * 5000,
    ],
)
def test_an_expression_that_would_exhaust_python_is_refused(expression: str) -> None:
    with pytest.raises(PlanError, match="where") as caught:
        evaluate(parse_where(expression), COLUMNS, {}, 0, len(ROWS))
    assert len(str(caught.value)) < 400


def test_long_lists_and_long_chains_are_no_deep_ones() -> None:
    names = ", ".join(f"'{number}'" for number in range(8000))
    assert kept(f"source in ({names}, 'coco.json')") == [5]
    assert kept(" or ".join(["width == 335"] * 5000)) == [5]
    assert kept("<=".join(["0"] * 500) + " < width < 340") == [1, 5]


def test_an_error_at_samples_that_are_decided_already_is_none() -> None:
    assert kept("images > 0 and text_bytes / images >= 10") == [0, 3, 5]
    assert kept("not (images == 0 or text_bytes / images < 10)") == [0, 3, 5]
    assert kept("0 < images <= text_bytes / images") == [0, 3, 4, 5]
    with pytest.raises(PlanError, match="divides by zero"):
        kept("text_bytes / images >= 10 and images > 0")


def test_an_extra_column_gives_one_integer_a_sample() -> None:
    for wrong in (np.zeros(5, np.int64), np.zeros(6), np.zeros((6, 1), np.int64)):
        with pytest.raises(PlanError, match="one integer a sample"):
            evaluate(parse_where("tokens > 3"), COLUMNS, {"tokens": lambda _, w=wrong: w}, 0, 6)


# What `select_where` leaves on disk.


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Columns:
    """More samples than are scanned at a time."""
    monkeypatch.setattr(select, "_CHUNK", 1024)
    generator = np.random.default_rng(0)
    widths = generator.integers(1, 1000, 5003).tolist()
    return columns_of([(f"{n:06d}", "s", [(width, 9)], n) for n, width in enumerate(widths)])


def asked(folder: Path, columns: Columns, expression: str | None = "width < 300", **other):
    options = {"keep": None, "fingerprint": "f" * 64, "extra": {}} | other
    where = parse_where(expression) if expression else None
    return select_where(where, columns, options.pop("extra"), folder=folder, **options)


def test_a_selection_is_what_the_expression_keeps(many: Columns, tmp_path: Path) -> None:
    bits, directory, digest = asked(tmp_path / "where", many)
    expected = np.flatnonzero(many.image_width < 300)
    selection = Selection(bits, 5003, directory)
    assert selection.select(np.arange(selection.count)).tolist() == expected.tolist()
    assert directory.tolist() == build_directory(bits).tolist()
    assert len(digest) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["where"]
    [found] = (tmp_path / "where").iterdir()
    assert np.load(found / "bits.npy").tolist() == bits.tolist()
    assert not bits.flags.owndata
    assert not bits.flags.writeable


def test_a_selection_is_found_again_without_a_look_at_the_samples(
    many: Columns, tmp_path: Path
) -> None:
    first = asked(tmp_path, many, keep=lambda span, _: np.arange(span.start, span.stop) % 2 == 0)
    assert Selection(first.bits, 5003).select([0]) % 2 == 0

    def never(span: slice, chosen: np.ndarray) -> np.ndarray:
        raise AssertionError("scanned again")

    again = asked(tmp_path, many, "width<300", keep=never)
    assert again.bits.tolist() == first.bits.tolist()
    assert again.digest == first.digest


@pytest.mark.parametrize(
    "other",
    [{"expression": "width < 301"}, {"fingerprint": "e" * 64}, {"identity": "other limits"}],
)
def test_another_question_has_an_answer_of_its_own(
    many: Columns, tmp_path: Path, other: dict[str, str]
) -> None:
    asked(tmp_path, many)
    asked(tmp_path, many, **other)
    assert len(list(tmp_path.iterdir())) == 2


def test_equal_selections_have_equal_digests(many: Columns, tmp_path: Path) -> None:
    one, same = asked(tmp_path, many), asked(tmp_path, many, "not width >= 300")
    assert one.digest == same.digest != asked(tmp_path, many, "width < 301").digest


def rewrite(path: Path, change: Callable[[bytearray], bytearray]) -> None:
    path.write_bytes(change(bytearray(path.read_bytes())))


def flip_last(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


HARM: dict[str, Callable[[Path], None]] = {
    "a bit of the bitmap": lambda at: rewrite(at / "bits.npy", flip_last),
    "a number of the directory": lambda at: rewrite(at / "ranks.npy", flip_last),
    "torn bitmap": lambda at: rewrite(at / "bits.npy", lambda data: data[:-5]),
    "empty directory": lambda at: rewrite(at / "ranks.npy", lambda data: bytearray()),
    "no bitmap": lambda at: (at / "bits.npy").unlink(),
    "half a note": lambda at: rewrite(at / "where.json", lambda data: data[:20]),
    "no note": lambda at: (at / "where.json").unlink(),
    "another version": lambda at: (at / "where.json").write_text(
        json.dumps(json.loads((at / "where.json").read_text()) | {"version": 0})
    ),
    "a note of another kind": lambda at: (at / "where.json").write_text("[]"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_selection_is_made_anew(many: Columns, tmp_path: Path, harm: str) -> None:
    expected = asked(tmp_path, many).bits.tolist()
    [place] = tmp_path.iterdir()
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    HARM[harm](place)
    assert asked(tmp_path, many).bits.tolist() == expected
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_replaced_by_the_cache(
    many: Columns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mkdtemp = select.tempfile.mkdtemp

    def denied(prefix: str, dir: Path) -> str:
        if dir == tmp_path / "where":
            raise OSError(code, "no writing here")
        return mkdtemp(prefix=prefix, dir=dir)

    monkeypatch.setattr(select.tempfile, "mkdtemp", denied)
    expected = np.flatnonzero(many.image_width < 300).tolist()
    for messages in (1, 1):
        found = asked(tmp_path / "where", many)
        assert np.flatnonzero(np.unpackbits(found.bits, bitorder="little")).tolist() == expected
        assert caplog.text.count("cannot be written") == messages
    assert list((tmp_path / "cache").rglob("bits.npy"))


def test_a_full_disk_is_no_reason_to_go_elsewhere(
    many: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mkdtemp = select.tempfile.mkdtemp

    def full(prefix: str, dir: Path) -> str:
        if dir == tmp_path / "where":
            raise OSError(errno.ENOSPC, "no space")
        return mkdtemp(prefix=prefix, dir=dir)

    monkeypatch.setattr(select.tempfile, "mkdtemp", full)
    with pytest.raises(OSError, match="no space"):
        asked(tmp_path / "where", many)
    assert not (tmp_path / "cache").exists()


def _ask_from_a_process(folder: Path, columns: Columns, _: int) -> str:
    return asked(folder, columns).digest


def test_processes_that_ask_at_once_get_one_answer(many: Columns, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        digests = pool.map(partial(_ask_from_a_process, tmp_path, many), range(8), chunksize=1)
    assert set(digests) == {asked(tmp_path, many).digest}
    assert len(list(tmp_path.iterdir())) == 1


def test_an_expression_that_keeps_nothing_says_what_each_term_keeps(
    many: Columns, tmp_path: Path
) -> None:
    count = int((many.image_width < 300).sum())
    with pytest.raises(PlanError) as caught:
        asked(tmp_path, many, "width < 300 and height > 9000 and 1 / (images - 1) > 3")
    assert f"none of 5,003 samples: `width < 300` keeps {count:,}, `height > 9000` keeps 0" in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []


def test_a_condition_that_keeps_nothing_of_what_the_expression_keeps_is_named(
    many: Columns, tmp_path: Path
) -> None:
    nothing = {"keep": lambda span, _: np.zeros(span.stop - span.start, bool)}
    with pytest.raises(PlanError, match="the 5,003 that it keeps are all too large, or without"):
        asked(tmp_path, many, "images == 1", **nothing)
    with pytest.raises(PlanError, match="none of 5,003 samples takes part"):
        asked(tmp_path, many, None, **nothing)


def test_many_long_terms_make_no_long_message(many: Columns, tmp_path: Path) -> None:
    term = f"source in ({', '.join(map(repr, map(str, range(100))))})"
    with pytest.raises(PlanError, match=r"'9'…` keeps 0, .* and 32 more terms; ") as caught:
        asked(tmp_path, many, " and ".join([term] * 40))
    assert len(str(caught.value)) < 1000


def test_an_error_leaves_nothing_behind(many: Columns, tmp_path: Path) -> None:
    def refuses(span: slice, chosen: np.ndarray) -> np.ndarray:
        if span.start:
            raise PlanError("too long")
        return np.ones(span.stop - span.start, bool)

    with pytest.raises(PlanError, match="too long"):
        asked(tmp_path, many, keep=refuses)
    with pytest.raises(PlanError, match="no column 'foo'"):
        asked(tmp_path, many, "foo > 3")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_missed_even_where_the_answer_is_known(
    many: Columns, tmp_path: Path
) -> None:
    asked(tmp_path, many, "tokens >= 0", extra={"tokens": lambda span: np.arange(5003)[span]})
    with pytest.raises(PlanError, match="tokens needs text="):
        asked(tmp_path, many, "tokens >= 0")


@pytest.mark.parametrize(("samples", "chunk"), list(product([1, 511, 512, 513, 1024], [512, 1024])))
def test_a_directory_fits_whatever_the_number_of_samples(
    samples: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_CHUNK", chunk)
    columns = columns_of([(str(n), "", [], 1) for n in range(samples)])
    bits, directory, _ = asked(tmp_path, columns, "images == 0")
    assert Selection(bits, samples, directory).count == samples
    assert directory.tolist() == build_directory(bits).tolist()


def test_index_and_plan_agree_on_the_blocks_of_a_directory() -> None:
    from datapipe.plan import selection

    assert select.BLOCK == selection.BLOCK
    assert select._CHUNK % select.BLOCK == 0
