"""Several processes that train together: what they learn, where they go on, who is lost."""

import functools
import json
import signal
from itertools import groupby
from pathlib import Path

import psutil
import pytest
import torch

import datapipe
from examples.vlm.model.config import MODELS
from examples.vlm.parallel.ranks import joined
from tests.case_files import cases
from tests.waiting import wait_until

from . import rank_worker
from .vlm_runs import SMALL, fit, start_ranks, torchrun

pytestmark = pytest.mark.campaign

TIMEOUT = 240
WORKER = ("tests.examples.rank_worker", "main")
COMMON = "--num-workers 0 --device cpu --lr-steps 9 --log-every 50"
ROWS = "--pack 240 --multiple-of 4"
WORDS = {
    "PACKED": "--pack 300",
    "THREE": "--pack 300 --accumulate 3",
    "EIGHT": "--batch-size 2 --global-batch-size 8",
    "LONG": "--pack 300 --steps 12 --lr 5e-3 --lr-warmup 2 --lr-steps 12",
    "ROWS": ROWS,
    "MESH": f"{ROWS} --tensor 2 --context 2",
    "FSDP": "--parallel fsdp",
    "LAYERS": "--parallel pipeline",
}
RUNS = cases("examples/ranks")


@pytest.fixture(autouse=True, scope="module")
def _small():
    """The model called tiny is smaller still, also where a fixture of the module trains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "tiny", SMALL)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def line_of(shards, folder):
    """Makes a command line of options in words."""
    words = WORDS | {"SHARDS": str(shards)}

    def make(options):
        texts = [words.get(text, text) for text in options.split()]
        if "LAST" in texts:
            texts[texts.index("LAST")] = str(step_of(folder / "killed") + 5)
        return f"{shards} {COMMON} {' '.join(texts)}".replace("FOLDER", str(folder)).split()

    return make


@pytest.fixture(scope="module")
def killed(line_of, folder):
    """The output of a run whose second rank was killed, after it had saved `folder / "killed"`."""
    run = torchrun(*WORKER, *line_of("EIGHT --steps 9999 --save FOLDER/killed --save-every 1"))
    try:
        wait_until(lambda: (folder / "killed").exists() or run.poll() is not None)
        assert run.poll() is None, run.communicate()
        ranks = psutil.Process(run.pid).children(recursive=True)
        second = next(rank for rank in ranks if rank.environ().get("RANK") == "1")
        second.send_signal(signal.SIGKILL)
        _, text = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    return text.replace(f"process {second.pid}", "process PID")


@pytest.fixture(scope="module")
def alone(line_of):
    """Figures of a run in one process."""

    @functools.cache
    def run(options):
        with joined("cpu") as ranks:
            return rank_worker.run(line_of(options), ranks)

    return run


@pytest.fixture(scope="module")
def found(line_of, folder, killed, alone):
    """Figures of each rank of a run, or its error, by the name of the run."""
    results = {}
    for count, runs in groupby(RUNS, lambda run: run[1].partition(" ")[0]):
        given = {name: options.partition(" ")[2] for name, options, _ in runs}
        if count == "1":
            results |= {name: [alone(options)] for name, options in given.items()}
            continue
        jobs, files = folder / "jobs", folder / "results"
        jobs.write_text(json.dumps({name: line_of(options) for name, options in given.items()}))
        start_ranks(int(count), "rank_worker", "jobs", jobs, files)
        ranks = [json.loads(Path(f"{files}.{rank}").read_text()) for rank in range(int(count))]
        results |= {name: [rank[name] for rank in ranks] for name in given}
    return results


def step_of(file):
    return int(torch.load(file, weights_only=True)["step"])


@pytest.mark.parametrize(("name", "options", "wanted"), [run for run in RUNS if run[2]])
def test_ranks_learn_what_one_process_learns(found, alone, folder, name, options, wanted):
    start, tolerance, same = wanted.replace("DONE", str(step_of(folder / "killed"))).split(" ", 2)
    ranks, one = found[name], alone(options[2:].replace("LAYERS ", "") if same == "SAME" else same)
    assert len({*one["losses"]}) == len(one["losses"])
    for rank in ranks:
        near = functools.partial(pytest.approx, rel=float(tolerance))
        assert rank.get("losses") == near(one["losses"][int(start) :]), rank
        assert rank["evaluations"] == near(one["evaluations"])
        assert rank["losses"] == ranks[0]["losses"]
    if name in ("packed fsdp", "padded fsdp") or "LAYERS" in options:
        parts = [rank["parameters"] for rank in ranks]
        assert sum(parts) == one["parameters"]
        assert min(parts) > 0
        assert "LAYERS" in options or max(parts) < 0.6 * one["parameters"]


def test_tokens_that_peers_share_are_counted_once(found, alone):
    assert found["mesh"][0]["tokens"] == alone("ROWS --steps 6")["tokens"]


def test_the_norm_of_a_rank_is_of_its_own_gradients(shards, found, runs, monkeypatch):
    make = datapipe.make_loader
    wanted = []
    for rank in range(2):
        share = functools.partial(make, rank=rank, world_size=2)
        monkeypatch.setattr(datapipe, "make_loader", share)
        fit(shards, "--pack", 300, "--steps", 2, "--lr", 0)
        # Here the labels of both ranks divide one rank's losses; there, two divides the sum too.
        wanted.append(2 * runs[-1].own[2].item())
    assert found["still"][0]["norms"] == pytest.approx(wanted, rel=1e-3)
    assert wanted[0] != pytest.approx(wanted[1], rel=1e-2)
    ours, theirs = (found[f"padded {kind}"][0]["norms"] for kind in ("ddp", "fsdp"))
    assert theirs == pytest.approx(ours, rel=1e-2)


def test_compressed_gradients_teach_nearly_the_same(found):
    exact = found["no hook"][0]["losses"]
    fallen = exact[0] - exact[-1]
    assert fallen > 0.5
    for hook, least in (("fp16", 0.99), ("bf16", 0.98), ("powersgd", 0.7)):
        losses = found[hook][0]["losses"]
        assert losses == found[hook][1]["losses"]
        assert losses != exact
        assert losses[0] - losses[-1] > least * fallen
    half, full = (found[name][0]["losses"] for name in ("bfloat16", "packed fsdp"))
    assert half != pytest.approx(full, rel=1e-6)


def test_options_that_differ_are_told_with_both_values(found):
    for rank in found["differ"]:
        assert "--clip is 1.0 on rank 0 and 2.0 on rank 1" in rank["error"]


def test_a_rank_that_is_killed_is_named(killed):
    assert "rank 1 (" in killed
    assert ", process PID) is gone, last seen " in killed


def test_an_older_checkpoint_of_shards_is_removed(found, folder):
    assert [path.name for path in (folder / "sharded").glob("step-*")] == ["step-3"]


@pytest.mark.measuring
def test_a_rank_that_hangs_in_the_data_is_named_with_its_stack(line_of):
    run = torchrun(*WORKER, *line_of("--batch-size 1 --steps 15 --rank-timeout 60"), HANG=1)
    try:
        _, text = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    assert run.returncode != 0
    assert "has been waiting for data (step 6) for" in text
    assert "the others wait for it, in the backward pass and the exchange of gradients" in text
    named = text[text.index("rank 1 is here:") :]
    assert "rank_worker.py" in named
    assert "rank 0 is here:" not in text
