"""The command in a process of its own, with a Ctrl-C that comes at a chosen moment."""

import subprocess
import sys

_PROGRAM = """
import os, signal, sys
moment, name = sys.argv[1:3]
del sys.argv[1:3]
def watch(event, arguments):
    global moment
    if event == moment and str(arguments[event == "os.rename"]).endswith(name):
        moment = None
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(watch)
from datapipe.cli import main
main()
"""


def interrupted_at(moment: str, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command; interrupt it where a file whose path ends with `name` is opened or renamed.

    Args:
        moment: audit event of Python, "open" or "os.rename" (to `name`).
        name: end of the path.
        arguments: of the command.
    """
    line = [sys.executable, "-c", _PROGRAM, moment, name, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True)
