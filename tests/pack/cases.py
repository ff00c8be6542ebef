"""Tables of cases in `cases.txt`."""

import json
from pathlib import Path

TEXT = Path(__file__).with_name("cases.txt").read_text("utf-8")


def cases(table):
    """Return the lines of a table, each parted into what is given and what is said of it."""
    lines = TEXT.partition(f"\n== {table}\n")[2].partition("\n\n")[0].splitlines()
    assert lines, table
    return [tuple(line.split(" => ")) for line in lines]


def record_cases(table):
    """Return the lines of a table whose first part is JSON."""
    return [(json.loads(given), *said) for given, *said in cases(table)]


def values(table):
    """Return the lines of a table that are JSON."""
    return [json.loads(line) for (line,) in cases(table)]
