import logging
import os
import sys
from typing import Any

from datapipe.compiled import compiled

from .programs import python


def test_a_cache_that_cannot_be_written_costs_a_compilation_alone(caplog):
    names: dict[str, Any] = {}
    exec("def double(number): return 2 * number", names)  # a function of no file has no cache
    with caplog.at_level(logging.INFO, "datapipe"):
        double = compiled("int64(int64)")(names["double"])
    assert double(4) == 8
    assert "compiled again in each process: cannot cache" in caplog.text


def test_numba_does_not_swap_standard_output_for_colours(tmp_path):
    (tmp_path / "colorama.py").write_text(
        "__version__ = '0.4.6'\n"
        "class Fore: RED = GREEN = BLUE = YELLOW = CYAN = MAGENTA = WHITE = BLACK = RESET = ''\n"
        "class Style: BRIGHT = RESET_ALL = ''\n"
        "init = reinit = deinit = print\n"
    )
    program = (
        "import datapipe.compiled, numba.core.errors as errors, os; "
        "print(type(errors.termcolor()).__name__, any('HIGHLIGHT' in name for name in os.environ))"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = python(program, env=os.environ | {"PYTHONPATH": path})
    assert done.stdout == "NOPColorScheme False\n", done.stderr
