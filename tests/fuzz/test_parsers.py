"""Every parser of datapipe, given damaged and hostile bytes: a result, or an error of ours.

`DATAPIPE_FUZZ_EXAMPLES` is the number of inputs of each parser in the campaign; slow ones get a
fifth. An input that fails goes into `corpus/`, where it is tried in each run.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapipe.errors import DatapipeError

from .targets import CORPUS, SLOW, TARGETS

EXAMPLES = int(os.environ.get("DATAPIPE_FUZZ_EXAMPLES", "300"))
TOKENS = (
    *(b"null", b"-1", b"1e999", b"NaN", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"[" * 2000),
    *(b"9" * 5000, b"99999999999999999999", b"0.5", b'"a"', b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(b"..", b"/", b"\\", b"'", b'"', b"(", b")", b" not ", b" in ", b"**", b"//0", b"&x", b"*x"),
    *(
        b"\xff\xd8",
        b"\xff\xe1\xff\xff",
        b"IHDR",
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"\n",
        b"\r\n",
    ),
)
PATTERNS = {
    "flip": lambda data, at, stop, part: (
        data[:at] + bytes([data[at] ^ 1 << stop % 8]) + data[at + 1 :]
    ),
    "overwrite": lambda data, at, stop, part: data[:at] + part + data[at + len(part) :],
    "insert": lambda data, at, stop, part: data[:at] + part + data[at:],
    "replace": lambda data, at, stop, part: data[:at] + part + data[stop:],
    "delete": lambda data, at, stop, part: data[:at] + data[stop:],
    "repeat": lambda data, at, stop, part: data[:stop] + data[at:],
    "zero": lambda data, at, stop, part: data[:at] + bytes(stop - at) + data[stop:],
    "cut": lambda data, at, stop, part: data[:at],
    "cut before": lambda data, at, stop, part: data[at:],
}
"""Edits of bytes: `at` and `stop` are positions, `part` is what is put in."""

edits = st.lists(
    st.tuples(
        st.sampled_from(sorted(PATTERNS)),
        st.integers(0, 1 << 16),
        st.integers(1, 40) | st.integers(1, 1 << 16),
        st.sampled_from(TOKENS) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=5,
)


def edited(data: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    for kind, at, length, part in changes:
        if data:
            start = at % len(data)
            stop = min(start + length, len(data))
            data = PATTERNS[kind](data, start, stop, part)
    return data


def check(name: str, data: bytes) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="datapipe-fuzz-") as folder,
        suppress(DatapipeError),
    ):
        TARGETS[name](data, Path(folder))


def seeds(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::SyntaxWarning")


@pytest.fixture(autouse=True)
def _no_log() -> Any:
    """Damage is logged, ten thousand times."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_each_parser_has_seeds() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs(name: str) -> None:
    for data in seeds(name):
        check(name, data)


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - SLOW))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 99), changes=edits)
def test_some_damaged_inputs(name: str, seed: int, changes: Any) -> None:
    kept = seeds(name)
    check(name, edited(kept[seed % len(kept)], changes))


@pytest.mark.campaign
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs(name: str) -> None:
    kept = seeds(name)

    @settings(
        max_examples=max(1, EXAMPLES // 5 if name in SLOW else EXAMPLES),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(seed=st.integers(0, 99), changes=edits)
    def damaged(seed: int, changes: Any) -> None:
        check(name, edited(kept[seed % len(kept)], changes))

    damaged()
