"""A loader inside Accelerate, torchdata and torch's distributed checkpoints, as it stands."""

import itertools

import pytest
import torch
import torch.distributed.checkpoint as dcp

from datapipe import DatapipeError
from datapipe.testing import assert_same_batches, valid_keys

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def take(batches, steps):
    return list(itertools.islice(batches, steps))


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.parametrize("steps", [3, 5])
def test_accelerate_saves_and_loads_where_the_loader_stands(make, tmp_path, accelerator, steps):
    def prepare():
        model = torch.nn.Linear(1, 1)
        return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)

    loader = make(batch_size=8)
    model, optimizer, prepared = prepare()
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    for batch in take(loader, steps):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["pixel_values"].float().mean().reshape(1, 1)).sum())
            optimizer.step()
    accelerator.save_state(str(tmp_path / "saved"))

    take(loader, 2)
    accelerator.load_state(str(tmp_path / "saved"))
    whole = make(batch_size=8)
    expected = [*whole, *whole][steps:]
    assert_same_batches([*loader, *([] if steps == 5 else loader)], expected)


@pytest.mark.parametrize("kind", ["of torchdata", "of the example"])
@pytest.mark.parametrize(("steps", "prefetch"), [(0, 3), (2, 0), (5, 3), (7, 3)])
def test_nodes_resume_exactly(make, kind, steps, prefetch):
    nodes = pytest.importorskip("torchdata.nodes")
    example = pytest.importorskip("examples.torchdata_nodes")

    def graph():
        wrap = nodes.IterableWrapper if kind == "of torchdata" else example.DatapipeNode
        node = wrap(make(batch_size=8))
        return nodes.Loader(nodes.Prefetcher(node, prefetch) if prefetch else node)

    def endless(loader):
        while True:
            yield from loader

    whole = make(batch_size=8)
    begun = graph()
    seen = take(endless(begun), steps)
    resumed = graph()
    resumed.load_state_dict(begun.state_dict())
    assert_same_batches(seen + take(endless(resumed), 10 - steps), [*whole, *whole])


def test_a_loader_keeps_the_conventions_of_a_stateful_dataloader(make):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def theirs():
        return stateful.StatefulDataLoader(list(range(37)), batch_size=8, num_workers=0)

    def lengths(make_one, steps):
        """Batches after `steps` and a break, of the rest in a new loader, of the next epoch."""
        loader, fresh = make_one(), make_one()
        seen = len(take(loader, steps)) if steps < len(loader) else len(list(loader))
        fresh.load_state_dict(loader.state_dict())
        return [len(loader), seen, len(list(fresh)), len(list(fresh)), len(list(loader))]

    for steps in (0, 1, 4, 5):
        assert lengths(lambda: make(batch_size=8), steps) == lengths(theirs, steps)


def test_a_distributed_checkpoint_holds_the_state(make, tmp_path):
    loader = make(batch_size=8)
    seen = take(loader, 3)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    resumed = make(batch_size=8)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved")
    assert_same_batches([*seen, *resumed], make(batch_size=8))
    assert len(valid_keys(seen)) == 24


def test_a_batch_uses_a_loaded_state_up_and_an_iterator_does_not(make):
    loader, resumed = make(batch_size=8), make(batch_size=8)
    take(loader, 2)
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    whole = list(make(batch_size=8))
    assert_same_batches(resumed, whole[2:])
    resumed.load_state_dict(loader.state_dict())
    take(resumed, 1)
    assert_same_batches(resumed, whole)


def test_an_iterator_that_gave_nothing_yet_follows_set_epoch(make):
    loader, expected = make(batch_size=8), make(batch_size=8)
    iterator = iter(loader)
    loader.set_epoch(2)
    expected.set_epoch(2)
    assert_same_batches(iterator, expected)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_dataloader_without_a_batch_size_passes_batches_on(make, steps):
    plain, wrapped = make(batch_size=8, epochs=2), make(batch_size=8, epochs=2)
    first = take(plain, steps)
    wrapped.load_state_dict(plain.state_dict())
    outer = torch.utils.data.DataLoader(wrapped, batch_size=None)
    assert len(outer) == len(wrapped) == len(plain)
    expected = list(make(batch_size=8, epochs=2))
    assert_same_batches([*first, *outer], expected)
    again = list(make(batch_size=8, epochs=4))[len(expected) :]
    assert_same_batches(outer, again)  # the next run
    assert wrapped.state_dict()["epoch"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "makes whole batches, and a DataLoader with a batch_size would put batches into"),
        ({"batch_size": 8}, r"give DataLoader\(loader, batch_size=None\), or, with the"),
        ({"batch_size": 8, "shuffle": True}, "return iter.loader. from its method get_train"),
        ({"batch_size": None, "sampler": [3, 1]}, r"loader\[3\]: batches come in the loader's own"),
        # torch waits 5 s for a worker that it has forked.
        pytest.param(
            {"batch_size": None, "num_workers": 1},
            "a DataLoader with num_workers=1 would make every",
            marks=pytest.mark.campaign,
        ),
        pytest.param(
            {"batch_size": 8, "num_workers": 1},
            "a DataLoader with a batch_size would put batches",
            marks=pytest.mark.campaign,
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_dataloader_that_would_change_the_batches_is_refused(make, options, message):
    if options.get("num_workers"):
        options = options | {"multiprocessing_context": "fork"}
    with pytest.raises(DatapipeError, match=message):
        next(iter(torch.utils.data.DataLoader(make(batch_size=8), **options)))


def test_a_trainer_that_would_batch_the_batches_is_refused_before_its_first_step(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    options = {"output_dir": str(tmp_path), "max_steps": 2, "report_to": [], "use_cpu": True}
    trainer = transformers.Trainer(
        model=torch.nn.Linear(1, 1),
        args=transformers.TrainingArguments(**options),
        train_dataset=make(batch_size=8),
    )
    with pytest.raises(DatapipeError, match=r"return iter\(loader\) from its method get_train_"):
        trainer.train()


def test_accelerate_prepares_a_dataloader_around_a_loader(make, accelerator):
    outer = torch.utils.data.DataLoader(make(batch_size=8), batch_size=None)
    assert_same_batches(accelerator.prepare(outer), make(batch_size=8))
