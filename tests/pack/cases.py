"""Tables of cases in `cases.txt`."""

import json
from pathlib import Path

TABLES = {}
for table in Path(__file__).with_name("cases.txt").read_text("utf-8").split("\n== ")[1:]:
    name, *lines = table.rstrip().splitlines()
    assert name not in TABLES, name
    assert all(lines), f"{name}: an empty line"
    TABLES[name] = lines


def cases(table):
    """Return the lines of a table, each parted into what is given and what is said of it."""
    return [tuple(line.split(" => ")) for line in TABLES[table]]


def record_cases(table):
    """Return the lines of a table whose first part is JSON."""
    return [(json.loads(given), *said) for given, *said in cases(table)]


def values(table):
    """Return the lines of a table that are JSON."""
    return [json.loads(line) for (line,) in cases(table)]
