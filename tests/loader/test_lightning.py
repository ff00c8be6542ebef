"""A loader given to Lightning's `Trainer.fit` as it stands: epochs, checkpoints, validation."""

import logging

import pytest
import torch

from datapipe import RunSpec
from datapipe.testing import valid_keys

pl = pytest.importorskip("pytorch_lightning")


@pytest.fixture(autouse=True)
def _quiet(caplog):
    with caplog.at_level(logging.ERROR, "pytorch_lightning"):
        yield


pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]


class Model(pl.LightningModule):
    """One weight; remembers the keys of the batches it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen: list[list[str]] = []
        self.validated: list[list[str]] = []

    def training_step(self, batch, index):
        self.seen.append(batch["key"])
        return self.weight(batch["pixel_values"].float().mean().reshape(1, 1)).sum()

    def validation_step(self, batch, index):
        self.validated += valid_keys([batch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def trainer_of(*callbacks, **options):
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
        **options,
    )


def fit(loader, *callbacks, resume=None, **options):
    model = Model()
    more = {"ckpt_path": str(resume), "weights_only": False} if resume else {}
    trainer_of(*callbacks, **options).fit(model, loader, **more)
    return model


def checkpoints(folder, **options):
    """Saves `folder/STEP.ckpt`."""
    return pl.callbacks.ModelCheckpoint(
        folder, filename="{step}", auto_insert_metric_name=False, save_top_k=-1, **options
    )


def keys_of(make, epochs):
    """Keys of every batch of uninterrupted epochs."""
    loader = make(batch_size=8)
    return [batch["key"] for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize(
    ("length", "run"),
    [
        ({"max_epochs": 3}, {}),
        ({"max_epochs": -1, "max_steps": 15}, {}),
        ({"max_epochs": 1}, {"epochs": None, "run": RunSpec(max_steps=15)}),
    ],
    ids=["epochs", "steps", "a run as one epoch"],
)
def test_a_checkpoint_of_any_step_goes_on_with_the_next_batch(make, tmp_path, length, run):
    def loader():
        return make(batch_size=8, **run)

    whole = fit(loader(), checkpoints(tmp_path, every_n_train_steps=1), **length)
    assert whole.seen == keys_of(make, 3)  # as a plain loop sees them
    for step in (1, 4, 5, 9, 14):
        resumed = fit(loader(), resume=tmp_path / f"{step}.ckpt", **length)
        assert resumed.seen == whole.seen[step:], f"resumed after {step} steps"


def test_a_checkpoint_of_an_epochs_end_goes_on_with_the_next_epoch(make, tmp_path):
    fit(make(batch_size=8), checkpoints(tmp_path), max_epochs=2)
    for step in (5, 10):
        resumed = fit(make(batch_size=8), resume=tmp_path / f"{step}.ckpt", max_epochs=4)
        assert resumed.seen == keys_of(make, 4)[step:]


@pytest.mark.parametrize("steps", [3, 5])
def test_a_run_that_stopped_at_max_steps_can_be_made_longer(make, tmp_path, steps):
    trainer = trainer_of(max_epochs=-1, max_steps=steps)
    trainer.fit(Model(), make(batch_size=8))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = fit(
        make(batch_size=8), resume=tmp_path / "last.ckpt", max_epochs=-1, max_steps=steps + 7
    )
    assert resumed.seen == keys_of(make, 3)[steps : steps + 7]


def test_epochs_cut_short_go_on_through_the_dataset(make):
    model = fit(make(batch_size=8), max_epochs=5, limit_train_batches=2)
    assert model.seen == keys_of(make, 2)[: len(model.seen)]
    assert len(model.seen) == 2 + 2 + 1 + 2 + 2


def test_a_loader_made_anew_for_every_epoch_takes_the_epoch_from_the_trainer(make):
    model = Model()
    model.train_dataloader = lambda: make(batch_size=8)
    trainer_of(max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(model)
    assert model.seen == keys_of(make, 3)


def test_validation_sees_everything_in_order_and_leaves_training_alone(make):
    model = Model()
    trainer = trainer_of(max_epochs=2, val_check_interval=2)
    trainer.fit(model, make(batch_size=8), make(batch_size=8, shuffle=False))
    ordered = valid_keys(make(shuffle=False))
    assert model.validated == ordered[:16] + 4 * ordered  # the sanity check takes two batches
    assert model.seen == keys_of(make, 2)


class CountsItsSteps(Model):
    """Lightning fetches one batch ahead of a loader without a length, and saves what it fetched."""

    def __init__(self, loader):
        super().__init__()
        self.loader = loader

    def on_save_checkpoint(self, checkpoint):
        states = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        states[0] = self.loader.state_dict(step=len(self.seen))


def test_a_run_without_an_end_is_saved_by_the_step(make, tmp_path):
    loader = make(batch_size=8, epochs=None)
    trainer = trainer_of(checkpoints(tmp_path, every_n_train_steps=1), max_epochs=1, max_steps=8)
    trainer.fit(CountsItsSteps(loader), loader)
    for step in (5, 7):
        resumed = fit(
            make(batch_size=8, epochs=None), resume=tmp_path / f"{step}.ckpt", max_steps=12
        )
        assert resumed.seen == keys_of(make, 3)[step:12]
