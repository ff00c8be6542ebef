"""The example of Ray Train: a worker that dies, and another number of workers."""

import signal
from itertools import islice
from pathlib import Path

import pytest

import datapipe
from tests.imports import IMPORTS

from .trainer_process import digest

ray = pytest.importorskip("ray")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ray.py"
PACK = 300


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 80


@pytest.fixture
def run(checkpoint, shards, tmp_path, run_program):
    """Runs the example by its command line, and notes what it does under a name."""
    variables = IMPORTS | {
        "NOTES": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "HF_HUB_OFFLINE": "1",
    }
    interrupt = signal.getsignal(signal.SIGINT)
    hook = "tests.examples.ray_train_hooks.note"
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": hook, "env_vars": variables},
    )

    def run(name, out, **options):
        (tmp_path / "run").write_text(name)
        line = [str(EXAMPLE), str(checkpoint), str(shards), str(tmp_path / out)]
        for option, value in ({"pack": PACK, "save-every": 3} | options).items():
            line += [f"--{option}", str(value)]
        run_program(line)

    yield run
    ray.shutdown()
    signal.signal(signal.SIGINT, interrupt)  # Ray Train leaves a handler of its own


@pytest.mark.campaign
@pytest.mark.flaky(reruns=1)  # Ray's own processes may not start on a busy machine
def test_a_run_goes_on_exactly_after_a_worker_died_and_on_another_number_of_workers(
    run, checkpoint, shards, tmp_path
):
    def noted(name):
        return (tmp_path / name).read_text().splitlines()

    options = {"model": checkpoint, "pack": PACK, "epochs": None}
    ranks = [
        list(map(digest, islice(datapipe.make_loader(shards, **options, **rank), 7)))
        for rank in ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2})
    ]
    (tmp_path / "kill").write_text("5")
    run("two", "out", steps=7)
    assert not (tmp_path / "kill").exists()
    losses = noted("two-losses")
    assert [int(line.split()[1]) for line in losses] == [1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert losses[5:7] == losses[3:5]
    assert len(set(losses)) == 7
    assert noted("two-batches-1") == ranks[1][:5] + ranks[1][3:]
    assert noted("two-batches-0")[-4:] == ranks[0][3:]

    run("one", "out", steps=9, workers=1, packs=2, decode="ray")
    assert [int(line.split()[1]) for line in noted("one-losses")] == [8, 9]
    loader = datapipe.make_loader(shards, **options, batch_size=2)
    assert noted("one-batches-0") == list(map(digest, islice(loader, 7, 9)))
