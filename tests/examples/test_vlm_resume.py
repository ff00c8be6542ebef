"""A run of the reference model that was stopped goes on as if it had not been."""

import os
import signal
from itertools import count

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from examples.vlm import checkpoint

from .vlm_runs import PACKED, fit

pytestmark = [pytest.mark.usefixtures("small_model"), pytest.mark.campaign]


@pytest.mark.parametrize(
    "arguments",
    [
        PACKED,
        ("--batch-size", 4),
        (*PACKED, "--accumulate", 2),
        (*PACKED, "--accumulate-tokens", 150),
        (*PACKED, "--precision", "bf16"),
        (*PACKED, "--precision", "fp16"),
        (*PACKED, "--optimizer", "foreach"),
        (*PACKED, "--lora", 4),
        (*PACKED, "--dropout", 0.3),
        (*PACKED, "--batch-size", 3, "--resident", "1GB"),
        ("--batch-size", 2, "--accumulate-samples", 5, "--dropout", 0.1, "--recompute", 2),
        (*PACKED, "--native", "--recompute", "--freeze-vision"),
        ("--batch-size", 6, "--buckets", 2, "--num-workers", 2, "--cache", "1GB"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_a_resumed_run_repeats_the_losses_of_an_uninterrupted_one_bit_for_bit(
    shards, tmp_path, runs, arguments
):
    file = tmp_path / "folder" / "run.pt"
    whole = fit(shards, *arguments, "--steps", 9)
    begun = fit(shards, *arguments, "--steps", 4, "--save", file)
    rest = fit(shards, *arguments, "--steps", 9, "--resume", file)
    assert begun.losses + rest.losses == whole.losses
    assert len(set(whole.losses)) == 9
    assert not list(file.parent.glob("*.tmp"))
    scales = [run.scaler.state_dict() for run in runs]
    assert scales[0] == scales[2]
    assert (scales[0] == scales[1]) == ("fp16" not in arguments)


def test_ctrl_c_ends_after_the_step_and_saves(shards, tmp_path, capfd):
    file, common = tmp_path / "run.pt", (*PACKED, "--steps", 6)
    handler = signal.getsignal(signal.SIGINT)
    whole = fit(shards, *common)

    steps = count(1)

    def interrupt(*_):
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with register_optimizer_step_post_hook(interrupt):
        stopped = fit(shards, *common, "--save", file)
    assert "stopping after this step" in capfd.readouterr().err
    assert stopped.losses == whole.losses[:3]
    rest = fit(shards, *common, "--resume", file)
    assert stopped.losses + rest.losses == whole.losses
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_checkpoint_of_another_model_is_refused(shards, tmp_path):
    file = tmp_path / "run.pt"
    fit(shards, *PACKED, "--steps", 1, "--save", file)
    with pytest.raises(ValueError, match=r"a run with lora 0, and this one has 4"):
        fit(shards, *PACKED, "--steps", 2, "--lora", 4, "--resume", file)
    with pytest.raises(ValueError, match="pack"):
        fit(shards, "--pack", 350, "--steps", 2, "--resume", file)
    with pytest.raises(ValueError, match=r"steps=1: the run has made 1 already"):
        fit(shards, *PACKED, "--steps", 1, "--resume", file)
    resident = ("--resident", "1GB")
    with pytest.raises(ValueError, match=r"a run without --resident; leave it out here too"):
        fit(shards, *PACKED, *resident, "--steps", 2, "--resume", file)
    fit(shards, *PACKED, *resident, "--steps", 1, "--save", tmp_path / "resident.pt")
    with pytest.raises(ValueError, match=r"resident.pt was written with --resident; give it here"):
        fit(shards, *PACKED, "--steps", 2, "--resume", tmp_path / "resident.pt")
    content = torch.load(file, weights_only=True)
    torch.save(content | {"version": 1}, file)
    with pytest.raises(ValueError, match=r"has version 1, and this program reads \d+: the parts"):
        fit(shards, *PACKED, "--steps", 2, "--resume", file)


def test_a_resumed_run_takes_the_options_of_its_own_optimizer(shards, tmp_path, runs):
    file = tmp_path / "run.pt"
    fit(shards, *PACKED, "--steps", 1, "--save", file)
    more = ("--weight-decay", 0.5, "--optimizer", "loop")
    fit(shards, *PACKED, "--steps", 2, "--resume", file, *more)
    matrices, others = runs[-1].optimizer.param_groups
    assert (matrices["weight_decay"], others["weight_decay"], matrices["fused"]) == (0.5, 0, False)


def test_a_checkpoint_is_whole_until_another_of_its_step_is(shards, tmp_path, runs, monkeypatch):
    """A folder is saved to a second time, by a run that does not continue the first."""
    folder = tmp_path / "run"
    whole = fit(shards, *PACKED, "--steps", 3)
    for _ in range(2):
        fit(shards, *PACKED, "--steps", 2)
        checkpoint.save(folder, runs[-1], sharded=True)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_tensors", interrupt)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(folder, runs[-1], sharded=True)
        rest = fit(shards, *PACKED, "--steps", 3, "--resume", folder)
        assert rest.losses == whole.losses[2:]


def interrupt(*_, **options):
    raise KeyboardInterrupt


def test_a_run_goes_on_with_another_number_of_ranks_and_says_what_starts_anew(
    shards, tmp_path, caplog
):
    file = tmp_path / "run.pt"
    whole = fit(shards, *PACKED, "--steps", 5)
    begun = fit(shards, *PACKED, "--steps", 3, "--save", file)
    content = torch.load(file, weights_only=True)
    content["random"]["cpu"] *= 2  # as two ranks would have left it
    torch.save(content, file)
    rest = fit(shards, *PACKED, "--steps", 5, "--resume", file)
    assert "random numbers of 2 ranks, and there are 1: they start anew" in caplog.text
    assert begun.losses + rest.losses == whole.losses
