"""Samples and tokens by dataset of a mixture, beside the plan's shares."""

import json
import weakref
from types import SimpleNamespace

import pytest
import torch

import datapipe

SHARES = {"captions": 0.75, "chats": 0.25, "unseen": 0.0}
PACK = {
    "dataset": ["captions", "chats", "captions", ""],
    "cu_seq_lens_q": torch.tensor([0, 10, 30, 37, 37, 64, 64], dtype=torch.int32),
    "valid": torch.tensor([True, True, True, False]),
}
PADDED = {
    "dataset": ["captions", "chats", "captions"],
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]),
    "valid": torch.tensor([True, True, False]),
}
PAIRS = PADDED | {"attention_mask": torch.cat([PADDED["attention_mask"], torch.ones(3, 4)]).long()}


def mixture(batches, shares=SHARES):
    """A loader of a mixture."""

    class Mixture:
        plan = SimpleNamespace(shares=lambda: shares)

        def __iter__(self):
            return iter(batches)

    return Mixture()


def watched(loader):
    monitor = datapipe.Monitor(gpu=False)
    for _ in monitor(loader):
        pass
    return monitor


def seen(loader):
    """Samples and tokens by dataset."""
    datasets = watched(loader).report().datasets
    return {each.name: (each.samples, each.tokens) for each in datasets}


def without(batch, *names):
    return {name: value for name, value in batch.items() if name not in names}


@pytest.mark.parametrize(
    ("batch", "captions", "chats"),
    [
        (PACK, (2, 17), (1, 20)),
        (PADDED, (1, 4), (1, 2)),
        (PAIRS, (1, 8), (1, 6)),
        (without(PACK, "valid"), (2, 17), (1, 20)),
        (without(PADDED, "valid"), (2, 7), (1, 2)),
        (without(PAIRS, "valid"), (2, 15), (1, 6)),
        (without(PADDED, "attention_mask"), (1, 0), (1, 0)),
        ({"dataset": ["captions", "", "chats"]}, (1, 0), (1, 0)),
    ],
    ids=[
        *("packed", "padded", "pairs", "packed, all", "padded, all", "pairs, all"),
        *("no tokens", "names alone"),
    ],
)
@pytest.mark.parametrize("count", [1, 150])
def test_every_batch_counts_without_padding_and_repeats(batch, captions, chats, count):
    found = seen(mixture([batch] * count))
    wanted = {"captions": captions, "chats": chats, "unseen": (0, 0)}
    assert found == {name: (count * a, count * b) for name, (a, b) in wanted.items()}


def test_nothing_is_counted_for_one_folder_and_for_batches_without_names():
    assert seen([PACK] * 5) == {}
    assert seen(mixture([without(PACK, "dataset")] * 5)) == {}
    assert seen(mixture([1, 2, 3])) == {}
    assert seen(mixture([PACK], shares={})) == {}


def test_batches_are_counted_in_the_course_of_the_run():
    class Names(list[str]):
        pass

    names = [Names(PACK["dataset"])]
    first = weakref.ref(names[0])

    def batches():
        yield PACK | {"dataset": names.pop()}
        yield from [PACK] * 400

    monitor = datapipe.Monitor(gpu=False)
    for number, _ in enumerate(monitor(mixture(batches()))):
        assert number < 200 or first() is None, "its names are kept"


def test_reports_have_the_shares(tmp_path):
    monitor = watched(mixture([PACK] * 30))
    report = monitor.report()
    captions, chats, _ = report.datasets
    assert captions.share == pytest.approx(2 / 3)
    assert captions.planned == 0.75
    assert captions.chance == pytest.approx((0.75 * 0.25 / 90) ** 0.5)
    lines = str(report).splitlines()
    assert "chats          30     600             33.3%        25.0%" in lines
    assert json.loads(json.dumps(report.to_dict()))["datasets"][1]["tokens"] == chats.tokens
    pytest.importorskip("matplotlib")
    monitor.save(tmp_path / "report.html")
    assert "Datasets of the mixture" in (tmp_path / "report.html").read_text()


@pytest.mark.gpu
def test_batches_on_a_gpu_are_counted_without_a_wait():
    batch = {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in PACK.items()
    }
    torch.cuda.set_sync_debug_mode("error")
    try:
        monitor = watched(mixture([batch] * 150))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    found = {each.name: (each.samples, each.tokens) for each in monitor.report().datasets}
    assert found == {"captions": (300, 2550), "chats": (150, 3000), "unseen": (0, 0)}


@pytest.mark.parametrize("schedule", [[], [{"from": 8, "weights": {"a": 3}}]])
def test_a_mixture_is_counted_as_planned(schedule, tmp_path, make_folder):
    given = {}
    for name, samples in (("a", 12), ("b", 5)):
        datapipe.pack_dataset(make_folder(tmp_path / "raw" / name, samples), tmp_path / name)
        given[name] = {"path": tmp_path / name, "weight": 1}
    given = {"datasets": given, "epoch": 24} | ({"schedule": schedule} if schedule else {})
    meta = ("dataset", "valid")
    loader = datapipe.make_loader(given, batch_size=4, image=None, meta=meta, num_workers=0)
    found = watched(loader).report().datasets
    assert {each.name: each.share for each in found} == pytest.approx(loader.plan.shares(0))
    assert {each.name: each.planned for each in found} == loader.plan.shares(0)
    assert sum(each.samples for each in found) == 24
    assert all(each.is_compared is not bool(schedule) for each in found)
