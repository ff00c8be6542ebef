"""Ctrl-C in a user's script: the script's own lines, and nothing of workers."""

import os
import signal
import subprocess
import sys

import pytest

from ..campaigns import rare
from ..imports import IMPORTS
from ..waiting import PATIENCE

# Ray's own processes may not start on a busy machine.
of_a_cluster = pytest.mark.flaky(reruns=2, reruns_delay=2)

SCRIPT = """
import sys

import datapipe


def halve(sample, generator):  # sent by its code
    return sample | {"images": [image // 2 for image in sample["images"]]}


def main():
    kind, persistent, moment, folder = sys.argv[1:]
    if kind == "ray":
        import ray

        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=2, **quiet)
    loader = datapipe.make_loader(
        folder,
        batch_size=4,
        num_workers=2,
        epochs=None,
        image=datapipe.ImageSpec(size=32),
        transform=halve,
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


@pytest.mark.parametrize(
    ("kind", "persistent", "moment"),
    [
        *(("threads", True, "middle"), rare("threads", True, "start")),
        *(rare("processes", True, moment) for moment in ("middle", "start")),
        *(("processes", False, "middle"), rare("processes", False, "start")),
        pytest.param("ray", True, "middle", marks=[pytest.mark.campaign, of_a_cluster]),
    ],
)
def test_ctrl_c_shows_the_script_and_nothing_of_workers(packed, tmp_path, kind, persistent, moment):
    if kind == "ray":
        pytest.importorskip("ray")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), kind, str(persistent), moment, str(packed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | IMPORTS,
    )
    try:
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert err.count("Traceback") == 1, err
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    if kind == "ray":  # which shuts down in its own way
        assert process.returncode, err
        return
    assert process.returncode == -signal.SIGINT, err
    assert "During handling" not in err
    assert "for batch in loader" in err or "enumerate(loader)" in err or "print(" in err, err
    # The script's two frames, and at most two of the loader.
    assert len(err.splitlines()) <= 14, err
