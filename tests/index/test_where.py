"""`where=` keeps the samples that Python or SQL would keep, and says what is wrong and where."""

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.index.where import evaluate, parse_where
from tests.case_files import cases

from .where_columns import COLUMNS, EXTRA, ROWS, columns_of


def kept(expression, columns=COLUMNS):
    """Numbers of the samples that an expression keeps."""
    samples = len(columns.sample_key) - 1
    return np.flatnonzero(evaluate(parse_where(expression), columns, EXTRA, 0, samples)).tolist()


@pytest.mark.parametrize(("expression", "samples"), cases("index/where_kept"))
def test_an_expression_keeps_the_samples_it_says(expression, samples):
    assert kept(expression) == [int(number) for number in samples.split()]


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


@settings(deadline=None, max_examples=200)
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


@settings(deadline=None, max_examples=300)
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


@given(start=st.integers(0, 6), length=st.integers(0, 6))
def test_a_stretch_is_judged_as_in_the_whole(start, length):
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
