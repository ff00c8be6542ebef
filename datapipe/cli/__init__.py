"""The `datapipe` command: parse options, call the library, print.

Options come in as text; lines, tables and files go out. Each command has a module. A new command
is a module here, listed in `command.py`.
"""

import atexit
import signal

__all__ = ["main"]


def main() -> None:
    # While it ends, Python restores the default action: a late Ctrl-C would end the process by the
    # signal, after the command has printed its result and chosen its exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        # Imported here, so that Ctrl-C during the imports ends quietly.
        from datapipe.cli.command import run

        run()
    except KeyboardInterrupt:
        import os
        import sys

        print("\nInterrupted.", file=sys.stderr)
        # Modules that are half imported may fail when the interpreter ends.
        os._exit(130)
