"""Every parser of datapipe, given damaged and hostile bytes: a result, or an error of ours.

`DATAPIPE_FUZZ_EXAMPLES` is the number of inputs of each parser in the campaign; slow ones get a
fifth. An input that fails goes into `corpus/`, where it is tried in each run.
"""

import json
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapipe.errors import DatapipeError

from ..campaigns import rare
from .targets import CORPUS, SLOW, TARGETS

EXAMPLES = int(os.environ.get("DATAPIPE_FUZZ_EXAMPLES", "200"))
TOKENS = (
    *(b"null", b"-1", b"1e999", b"NaN", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"[" * 2000),
    *(b"9" * 5000, b"99999999999999999999", b"0.5", b'"a"', b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(b"..", b"/", b"\\", b"'", b'"', b"(", b")", b" not ", b" in ", b"**", b"//0", b"&x", b"*x"),
    *(b"\xff\xd8", b"\xff\xe1\xff\xff", b"IHDR", b"\x7f\xff\xff\xff", b"\x80\0\0\0"),
    *(b"\n", b"\r\n"),
)
VALUES = (
    *(None, -1, 0, 0.5, 1e300, 10**30, True, "", "a", "../x", "<image>", "\ud800", "a\0b"),
    *([], {}, [None], [[]], ["a", 1], {"a": 1}, {"role": "user"}, [{"value": None}]),
)
"""Values that are put into JSON."""


def flip(data, at, stop, part):
    return data[:at] + bytes([data[at] ^ 1 << stop % 8]) + data[at + 1 :]


def put_value(data, at, stop, part):
    """Replace or remove a value of a JSON document, or of the first line of JSON."""
    line, rest = data, b""
    with suppress(ValueError, RecursionError):
        if b"\n" in data.strip():
            with suppress(ValueError):
                json.loads(data.partition(b"\n")[0])
                line, *_ = data.partition(b"\n")
                rest = data[len(line) :]
        document = json.loads(line)
        held = [(document, key) for key in keys_of(document)]
        for inside, key in held:
            held += [(inside[key], more) for more in keys_of(inside[key])]
        inside, key = held[at % len(held)] if held else ([document], 0)
        if part == b"" and isinstance(inside, dict):
            del inside[key]
        else:
            inside[key] = VALUES[stop % len(VALUES)]
        return json.dumps(document).encode() + rest
    return data


def keys_of(value):
    return list(
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )


EDITS = {
    "flip": flip,
    "overwrite": lambda data, at, stop, part: data[:at] + part + data[at + len(part) :],
    "insert": lambda data, at, stop, part: data[:at] + part + data[at:],
    "replace": lambda data, at, stop, part: data[:at] + part + data[stop:],
    "delete": lambda data, at, stop, part: data[:at] + data[stop:],
    "repeat": lambda data, at, stop, part: data[:stop] + data[at:],
    "zero": lambda data, at, stop, part: data[:at] + bytes(stop - at) + data[stop:],
    "cut": lambda data, at, stop, part: data[:at],
    "cut before": lambda data, at, stop, part: data[at:],
    "put value": put_value,
}
"""Edits of bytes: `at` and `stop` are positions, `part` is what is put in."""


def edit(kinds):
    return st.tuples(
        st.sampled_from(sorted(kinds)),
        st.integers(0, 1 << 16),
        st.integers(1, 40) | st.integers(1, 1 << 16),
        st.sampled_from(TOKENS) | st.binary(max_size=8),
    )


edits = st.lists(edit(EDITS), min_size=1, max_size=5) | st.lists(
    edit({"put value"}), min_size=1, max_size=2
)


def edited(data, changes):
    for kind, at, length, part in changes:
        if data:
            start = at % len(data)
            stop = min(start + length, len(data))
            data = EDITS[kind](data, start, stop, part)
    return data


def check(name, data):
    with tempfile.TemporaryDirectory(prefix="datapipe-fuzz-") as folder, suppress(DatapipeError):
        TARGETS[name](data, Path(folder))


def seeds(name):
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::SyntaxWarning")


@pytest.fixture(autouse=True)
def _no_log():
    """Damage is logged, ten thousand times."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_each_parser_has_seeds():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs(name):
    for data in seeds(name):
        check(name, data)


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        *((name, 25) for name in TARGETS if name not in SLOW),
        *(rare(name, max(1, EXAMPLES // 5 if name in SLOW else EXAMPLES)) for name in TARGETS),
    ],
)
def test_damaged_inputs(name, examples):
    kept = seeds(name)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(seed=st.integers(0, 99), changes=edits)
    def damaged(seed, changes):
        check(name, edited(kept[seed % len(kept)], changes))

    damaged()
