"""Ctrl-C in a user's script: the script's own lines, and nothing of workers."""

import os
import signal
import subprocess
import sys

import pytest

from ..campaigns import rare
from ..waiting import PATIENCE

SCRIPT = """
import sys

import datapipe


def main():
    kind, persistent, moment, folder = sys.argv[1:]
    loader = datapipe.make_loader(
        folder,
        batch_size=4,
        num_workers=2,
        epochs=None,
        image=datapipe.ImageSpec(size=32),
        workers=datapipe.WorkerSpec(kind, persistent=persistent == "True"),
    )
    if moment == "start":
        print("begun", flush=True)
    for number, batch in enumerate(loader):
        if moment == "middle" and number == 12:
            print("begun", flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("moment", [rare("start"), "middle"])
@pytest.mark.parametrize(
    ("kind", "persistent"), [("threads", True), rare("processes", True), ("processes", False)]
)
def test_ctrl_c_shows_the_script_and_nothing_of_workers(packed, tmp_path, kind, persistent, moment):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), kind, str(persistent), moment, str(packed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, err
    assert err.count("Traceback") == 1, err
    assert "During handling" not in err
    assert "for batch in loader" in err or "enumerate(loader)" in err or "print(" in err, err
    # The script's two frames, and at most two of the loader.
    assert len(err.splitlines()) <= 14, err
    assert err.splitlines()[-1] == "KeyboardInterrupt"
