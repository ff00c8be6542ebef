"""Tables of cases are read by tests."""

import re
from pathlib import Path

from .cases import TABLES


def test_every_table_is_asked_for():
    code = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    asked = re.escape("\n".join(re.findall(r'(?:cases|values)\(\s*f?"(.+?)"\s*\)', code)))
    names = re.sub(r"\\\{\w+\\\}", r"\\w+", asked).replace("\\\n", "|")  # of f-strings too
    assert [name for name in TABLES if not re.fullmatch(names, name)] == []
