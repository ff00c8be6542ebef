"""Samples and tokens by dataset of a mixture, beside the plan's shares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import datapipe
from datapipe.diagnosis.loop_figures import DatasetShare, LoopFigures
from datapipe.diagnosis.loop_rules import judge

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


class Mixture:
    """A loader of a mixture."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.plan = SimpleNamespace(shares=lambda: SHARES)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def seen(loader: Any) -> dict[str, tuple[int, int]]:
    """Samples and tokens by dataset."""
    monitor = datapipe.Monitor(gpu=False)
    for _ in monitor(loader):
        with monitor.step():
            pass
    return {each.name: (each.samples, each.tokens) for each in monitor.report().datasets}


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}


@pytest.mark.parametrize(
    ("batch", "captions", "chats"),
    [
        (PACK, (2, 17), (1, 20)),
        (PADDED, (1, 4), (1, 2)),
        (without(PACK, "valid"), (2, 17), (1, 20)),
        (without(PADDED, "valid"), (2, 7), (1, 2)),
        (without(PADDED, "attention_mask"), (1, 0), (1, 0)),
        ({"dataset": ["captions", "", "chats"]}, (1, 0), (1, 0)),
    ],
    ids=["packed", "padded", "packed, all", "padded, all", "no tokens", "names alone"],
)
@pytest.mark.parametrize("count", [1, 150])
def test_every_batch_counts_without_padding_and_repeats(
    batch: dict[str, Any], captions: tuple[int, int], chats: tuple[int, int], count: int
) -> None:
    found = seen(Mixture([batch] * count))
    wanted = {"captions": captions, "chats": chats, "unseen": (0, 0)}
    assert found == {name: (count * a, count * b) for name, (a, b) in wanted.items()}


def test_nothing_is_counted_for_one_folder_and_for_batches_without_names() -> None:
    assert seen([PACK] * 5) == {}
    assert seen(Mixture([without(PACK, "dataset")] * 5)) == {}
    assert seen(Mixture([1, 2, 3])) == {}


def test_batches_are_not_kept_until_the_report() -> None:
    monitor = datapipe.Monitor(gpu=False)
    for _ in monitor(Mixture([PACK] * 400)):
        with monitor.step():
            assert len(monitor._meter._counters.datasets._pending) < 200


def test_reports_have_the_shares(tmp_path: Path) -> None:
    monitor = datapipe.Monitor(gpu=False)
    for _ in monitor(Mixture([PACK] * 30)):
        pass
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


def test_a_plan_of_one_folder_has_no_datasets() -> None:
    loader = Mixture([PACK])
    loader.plan = SimpleNamespace(shares=dict)
    assert seen(loader) == {}


@pytest.mark.gpu
def test_batches_on_a_gpu_are_counted_without_a_wait() -> None:
    batch = {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in PACK.items()
    }
    monitor = datapipe.Monitor(gpu=False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in monitor(Mixture([batch] * 150)):
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    report = monitor.report()
    assert [(each.samples, each.tokens) for each in report.datasets] == [
        *((300, 2550), (150, 3000), (0, 0))
    ]


def verdict_of(
    samples: int, share: float, planned: float = 0.3, chance: float = 0.0, compared: bool = True
) -> Any:
    chats = round(samples * share)
    datasets = tuple(
        DatasetShare(
            name=name,
            samples=n,
            tokens=n,
            share=of,
            planned=wanted,
            chance=chance,
            is_compared=compared,
        )
        for name, n, of, wanted in (
            ("captions", samples - chats, 1 - share, 1 - planned),
            ("chats", chats, share, planned),
        )
    )
    return judge(LoopFigures(turns=100, step=1.0, datasets=datasets))


@pytest.mark.parametrize(
    ("samples", "share", "chance", "off"),
    [
        (10_000, 0.289, 0.0, True),
        (10_000, 0.312, 0.0, True),
        (10_000, 0.291, 0.0, False),
        (9_990, 0.2, 0.0, False),  # too few samples
        (10_000, 0.289, 0.0046, False),  # as the ranks draw
        (10_000, 0.279, 0.0046, True),
    ],
)
def test_verdicts_name_a_dataset_whose_share_is_off(
    samples: int, share: float, chance: float, off: bool
) -> None:
    verdict = verdict_of(samples, share, chance=chance)
    assert verdict.kind == "compute"
    assert ("plan gives it" in verdict.sentence) is off
    assert (verdict.level == "warn") is off


def test_the_verdict_names_the_dataset_that_is_furthest_off() -> None:
    found = {"a": (0.15, 0.1), "b": (0.25, 0.4), "c": (0.6, 0.5)}
    datasets = tuple(
        DatasetShare(name=name, samples=10**4, tokens=1, share=share, planned=planned)
        for name, (share, planned) in found.items()
    )
    late = judge(LoopFigures(turns=100, step=0.5, wait=0.5, datasets=datasets))
    assert late.sentence.endswith(
        "; 25.0% of the samples come from 'b', and the plan gives it 40.0%"
    )
    assert (late.kind, late.level) == ("data", "bad")


@pytest.mark.parametrize("schedule", [[], [{"from": 8, "weights": {"a": 3}}]])
def test_a_mixture_is_counted_as_planned(
    schedule: list[Any], tmp_path: Path, make_folder: Any
) -> None:
    given = {}
    for name, samples in (("a", 12), ("b", 5)):
        datapipe.pack_dataset(make_folder(tmp_path / "raw" / name, samples), tmp_path / name)
        given[name] = {"path": tmp_path / name, "weight": 1}
    mixture: dict[str, Any] = {"datasets": given, "epoch": 24}
    if schedule:
        mixture["schedule"] = schedule
    meta = ("dataset", "valid")
    loader = datapipe.make_loader(mixture, batch_size=4, image=None, meta=meta, num_workers=0)
    monitor = datapipe.Monitor(gpu=False)
    for _ in monitor(loader):
        pass
    found = monitor.report().datasets
    assert {each.name: each.share for each in found} == pytest.approx(loader.plan.shares(0))
    assert {each.name: each.planned for each in found} == loader.plan.shares(0)
    assert sum(each.samples for each in found) == 24
    assert all(each.is_compared is not bool(schedule) for each in found)


def test_shares_that_a_schedule_changes_are_no_verdict() -> None:
    assert "plan gives it" in verdict_of(20_000, 0.9).sentence
    assert "plan gives it" not in verdict_of(20_000, 0.9, compared=False).sentence
