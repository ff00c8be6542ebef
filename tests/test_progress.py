"""Progress: one bar at a time on a terminal."""

import os
import pty
import subprocess
import sys

PROGRAM = """
from datapipe.progress import Progress
with Progress("opening", unit="dataset") as outer, Progress("counting", unit="sample") as inner:
    for _ in range(3):
        inner.advance(5)
with Progress("planning", unit="sample") as after:
    after.advance(5)
"""


def test_a_job_inside_of_another_shows_no_bar():
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", PROGRAM], stderr=end, check=True)
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "opening" in shown
    assert "planning" in shown
    assert "counting" not in shown
