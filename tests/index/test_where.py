"""`where=` keeps the samples that Python or SQL would keep, and says what is wrong and where.

What `select_where` leaves on disk is asked at the end.
"""

import multiprocessing
import sqlite3
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.index.where import evaluate, parse_where, select_where
from datapipe.plan.selection import Selection
from tests.case_files import cases

from .where_columns import COLUMNS, EXTRA, ROWS, columns_of


def kept(expression, columns=COLUMNS):
    """Numbers of the samples that an expression keeps."""
    samples = len(columns.sample_key) - 1
    return np.flatnonzero(evaluate(parse_where(expression), columns, EXTRA, 0, samples)).tolist()


@pytest.mark.parametrize(("expression", "samples"), cases("index/where_kept"))
def test_an_expression_keeps_the_samples_it_says_also_in_a_stretch_alone(expression, samples):
    assert kept(expression) == [int(number) for number in samples.split()]
    where = parse_where(expression)
    whole = evaluate(where, COLUMNS, EXTRA, 0, 6).tolist()
    for start, stop in combinations_with_replacement(range(7), 2):
        part = evaluate(where, COLUMNS, EXTRA, start, stop)
        assert part.dtype == np.bool_
        assert part.tolist() == whole[start:stop]


# Python is the oracle where every sample has every number, SQL where some are missing.

NAMES = ("width", "height", "images", "text_bytes")
KNOWN = [row for row in ROWS if row[2] and row[2][0][1]]


def nested(leaves, joined, before, most):
    """Expressions of up to `most` leaves: two that are joined, or one with a sign before it."""
    signs = st.sampled_from(joined.split())
    return st.recursive(
        leaves,
        lambda inner: (
            st.tuples(inner, signs, inner).map(lambda parts: f"({' '.join(parts)})")
            | inner.map(lambda part: f"({before}{part})")
        ),
        max_leaves=most,
    )


LEAVES = st.sampled_from([*NAMES, "0.5", "2."]) | st.integers(-5, 1000).map(str)
NUMBERS = nested(LEAVES, "+ - * // % /", "-", 4)
COMPARED = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
COMPARISONS = st.tuples(NUMBERS, COMPARED, NUMBERS).map(" ".join) | st.tuples(
    NUMBERS, COMPARED, NUMBERS, COMPARED, NUMBERS
).map(" ".join)


@settings(max_examples=200)
@given(expression=nested(COMPARISONS, "and or", "not ", 6))
def test_python_keeps_the_same_samples(expression):
    expected, undefined = [], set()
    for number, (_, _, sizes, text) in enumerate(KNOWN):
        row = dict(zip(NAMES, (*sizes[0], len(sizes), text), strict=True))
        try:
            if eval(expression, {}, row):
                expected.append(number)
        except ZeroDivisionError:
            undefined.add(number)
    found = kept(expression, columns_of(KNOWN))
    assert [number for number in found if number not in undefined] == expected


SQL_LEAVES = st.tuples(
    st.sampled_from(["width", "height", "images", "width + height", "text_bytes * 1.0 / images"]),
    COMPARED,
    st.sampled_from(["336", "height", "0", "text_bytes * 2"]),
).map(" ".join) | st.sampled_from(
    ["width in (336, 640)", "height not in (336, 100)", "width is None", "height is not None"]
)


@settings(max_examples=300)
@given(expression=nested(SQL_LEAVES, "and or", "not ", 6))
def test_a_missing_number_is_neither_more_nor_less_as_in_sql(expression):
    base = sqlite3.connect(":memory:")
    base.execute("create table samples (number, width, height, images, text_bytes)")
    for number, (_, _, sizes, text) in enumerate(ROWS):
        first = sizes[0] if sizes and sizes[0][1] else (None, None)
        base.execute("insert into samples values (?,?,?,?,?)", (number, *first, len(sizes), text))
    sql = expression.replace("==", "=").replace("is None", "is null")
    sql = sql.replace("is not None", "is not null")
    rows = base.execute(f"select number from samples where {sql} order by number").fetchall()
    assert kept(expression) == [number for (number,) in rows]


def test_spaces_quotes_and_needless_parentheses_make_no_other_expression():
    forms = [
        "width>=336 and source in ('a','b')",
        ' (width  >= 336)   and source in ("a", "b") ',
        "width >= 0x150 and\r\n source in ('a', 'b',)",
    ]
    parsed = [parse_where(form) for form in forms]
    assert len({str(where) for where in parsed}) == 1
    assert len(set(parsed)) == 1
    assert str(parse_where(str(parsed[0]))) == str(parsed[0])
    assert str(parse_where("width >= 337")) != str(parse_where("width >= 336"))


@pytest.mark.parametrize(
    ("expression", "character", "message"),
    [*cases("index/where_refused"), (f"width in (1, {'9' * 400})", 14, "the number is too large")],
)
def test_what_is_wrong_is_said_with_its_place(expression, character, message):
    with pytest.raises(PlanError, match=message) as caught:
        evaluate(parse_where(expression), COLUMNS, {}, 0, len(ROWS))
    assert f"character {character}: " in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("expression", ["", "  \n ", 3, None, lambda width: width > 3])
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(PlanError, match=r"where (is|must be)"):
        parse_where(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 90_000,
        "-" * 90_000 + "width > 3",
        "not " * 20_000 + "width > 3",
        "width > 1" + " + 1" * 20_000,
        "a." * 40_000 + "b > 3",
        "lambda: " * 10_000 + "1",
        "width > 3 if width > 3 else " * 3000 + "1",
        "width > " + "[" * 180 + "]" * 180,
        "width \0> 3",
        "key == '\ud800'",
        "width > " + "9" * 5000,
    ],
)
def test_an_expression_that_would_exhaust_python_is_refused(expression):
    with pytest.raises(PlanError, match="where") as caught:
        evaluate(parse_where(expression), COLUMNS, {}, 0, len(ROWS))
    assert len(str(caught.value)) < 400


def test_long_lists_and_long_chains_are_no_deep_ones():
    names = ", ".join(f"'{number}'" for number in range(8000))
    assert kept(f"source in ({names}, 'coco.json')") == [5]
    assert kept(" or ".join(["width == 335"] * 5000)) == [5]
    assert kept("<=".join(["0"] * 500) + " < width < 340") == [1, 5]


def test_an_extra_column_gives_one_integer_a_sample():
    for wrong in (np.zeros(5, np.int64), np.zeros(6), np.zeros((6, 1), np.int64)):
        with pytest.raises(AssertionError, match="tokens"):
            evaluate(parse_where("tokens > 3"), COLUMNS, {"tokens": lambda _, w=wrong: w}, 0, 6)


@pytest.fixture
def many():
    generator = np.random.default_rng(0)
    widths = generator.integers(1, 1000, 5003).tolist()
    return columns_of([(f"{n:06d}", "s", [(width, 9)], n) for n, width in enumerate(widths)])


def asked(folder, columns, expression="width < 300", **other):
    options = {"keep": None, "fingerprint": "f" * 64, "extra": {}} | other
    where = parse_where(expression) if expression else None
    return select_where(where, columns, options.pop("extra"), folder=folder, **options)


def test_a_selection_is_what_the_expression_keeps(many, tmp_path):
    bits, digest, kept = asked(tmp_path / "where", many)
    expected = np.flatnonzero(many.image_width < 300)
    selection = Selection(bits, 5003)
    assert kept == selection.count
    assert selection.select(np.arange(selection.count)).tolist() == expected.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["where"]
    [found] = (tmp_path / "where").iterdir()
    assert np.load(found / "bits.npy").tolist() == bits.tolist()
    assert not bits.flags.owndata
    assert not bits.flags.writeable
    assert len(digest) == 64
    assert digest == asked(tmp_path, many, "not width >= 300").digest
    assert digest != asked(tmp_path, many, "width < 301").digest


def test_a_selection_is_found_again_without_a_look_at_the_samples(many, tmp_path):
    first = asked(tmp_path, many, keep=lambda span, _: np.arange(span.start, span.stop) % 2 == 0)
    assert Selection(first.bits, 5003).select([0]) % 2 == 0
    again = asked(tmp_path, many, "width<300", keep=lambda *_: pytest.fail("scanned again"))
    assert again.bits.tolist() == first.bits.tolist()
    assert again.digest == first.digest


@pytest.mark.parametrize(
    "other",
    [{"expression": "width < 301"}, {"fingerprint": "e" * 64}, {"identity": "other limits"}],
)
def test_another_question_has_an_answer_of_its_own(many, tmp_path, other):
    asked(tmp_path, many)
    asked(tmp_path, many, **other)
    assert len(list(tmp_path.iterdir())) == 2


def _ask_from_a_process(folder, columns, _):
    return asked(folder, columns).digest


def test_processes_that_ask_at_once_get_one_answer(many, tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        digests = pool.map(partial(_ask_from_a_process, tmp_path, many), range(8), chunksize=1)
    assert set(digests) == {asked(tmp_path, many).digest}
    assert len(list(tmp_path.iterdir())) == 1


def test_an_expression_that_keeps_nothing_says_what_each_term_keeps(many, tmp_path):
    count = int((many.image_width < 300).sum())
    message = f"none of 5,003 samples: `width < 300` keeps {count:,}, `height > 9000` keeps 0"
    with pytest.raises(PlanError, match=message):
        asked(tmp_path, many, "width < 300 and height > 9000 and 1 / (images - 1) > 3")
    assert list(tmp_path.iterdir()) == []


def test_a_condition_that_keeps_nothing_of_what_the_expression_keeps_is_named(many, tmp_path):
    nothing = {"keep": lambda span, _: np.zeros(span.stop - span.start, bool)}
    with pytest.raises(PlanError, match="the 5,003 that it keeps are all too large, or without"):
        asked(tmp_path, many, "images == 1", **nothing)
    with pytest.raises(PlanError, match="none of 5,003 samples takes part"):
        asked(tmp_path, many, None, **nothing)


def test_many_long_terms_make_no_long_message(many, tmp_path):
    term = f"source in ({', '.join(map(repr, map(str, range(100))))})"
    with pytest.raises(PlanError, match=r"'9'…` keeps 0, .* and 32 more terms; ") as caught:
        asked(tmp_path, many, " and ".join([term] * 40))
    assert len(str(caught.value)) < 1000


def test_an_error_leaves_nothing_behind(many, tmp_path):
    def refuses(*_):
        raise PlanError("too long")

    with pytest.raises(PlanError, match="too long"):
        asked(tmp_path, many, keep=refuses)
    with pytest.raises(PlanError, match="no column 'foo'"):
        asked(tmp_path, many, "foo > 3")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_missed_even_where_the_answer_is_known(many, tmp_path):
    asked(tmp_path, many, "tokens >= 0", extra={"tokens": lambda span: np.arange(5003)[span]})
    with pytest.raises(PlanError, match="tokens needs text="):
        asked(tmp_path, many, "tokens >= 0")


@pytest.mark.parametrize("samples", [1, 511, 512, 513, 1024, 1 << 18, (1 << 19) + 1])
def test_a_bitmap_fits_whatever_the_number_of_samples(samples, tmp_path):
    columns = replace(
        columns_of([]),
        shard_sample=np.array([0, samples]),
        text_bytes=np.arange(samples),
        sample_image=np.zeros(samples + 1, np.int64),
        sample_key=np.zeros(samples + 1, np.int64),
    )
    bits, _, kept = asked(tmp_path, columns, "text_bytes % 3 == 0 and images == 0")
    selection = Selection(bits, samples)
    assert selection.count == kept == (samples + 2) // 3
    assert selection.select(np.arange(kept)).tolist() == list(range(0, samples, 3))
