"""The words of the code: docstrings that say what they describe, and names with one meaning."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("datapipe", "examples", "benchmarks", "tools")
RIDDLES = ("What", "Whether", "Where", "How", "Which", "Who", "Those", "That", "Of ")


def texts(part):
    """Return the modules of a part of the project by name."""
    paths = sorted((ROOT / part).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


def test_no_docstring_begins_with_a_question():
    docstring = re.compile(rf'(?:\A|:)\s*r?"""\s*(?:{"|".join(RIDDLES)})')
    assert docstring.search('def f(a) -> int:\n    """Which it is."""')
    every = {name: text for part in PARTS for name, text in texts(part).items()}
    assert len(every) > 500
    asked = [f"{name}: {found[0]}" for name in every for found in docstring.finditer(every[name])]
    assert asked == []


def test_a_class_name_means_one_thing():
    found = re.compile(r"^\s*class _*(\w+)[(:\[]", re.MULTILINE)
    names = Counter(name for text in texts("datapipe").values() for name in found.findall(text))
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1] == []
