"""Programs in processes of their own."""

import subprocess
import sys
from typing import Any


def python(
    program: str, *arguments: Any, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python; what it writes is kept."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0 or not check, done.stderr
    return done
