"""What `select_where` leaves on disk, and what it says where nothing is kept."""

import multiprocessing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from datapipe.errors import PlanError
from datapipe.index.where import parse_where, select_where
from datapipe.plan.selection import Selection

from .where_columns import columns_of


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
