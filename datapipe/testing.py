"""Checks that users can run on their own configurations; datapipe's tests run the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

MakeLoader = Callable[..., Any]
"""Makes a loader of one fixed configuration; takes `num_workers`, `rank` and `world_size`."""


def assert_resumes_exactly(
    make_loader: MakeLoader,
    *,
    num_workers: Sequence[int] = (0, 2),
    world_sizes: Sequence[int] = (1, 2, 3),
    stops: Iterable[float] = (0.0, 0.3, 0.7, 1.0),
) -> None:
    """Assert that a loader resumes exactly, after any step and on any number of ranks.

    One run is read without interruption: an epoch, or `epochs`, or `max_steps`. Then, for each
    share in `stops`, a run is stopped after that share of its steps, its state goes through JSON
    into a new loader with another number of workers, and the rest must be the same batches, bit for
    bit. Last, ranks of other world sizes take the rest over, and together they must see the same
    samples, each once. For this, batches of tokens need `meta=("key", "valid")`.

    Args:
        make_loader: `make_loader(num_workers=..., rank=..., world_size=...)` returns a new loader;
            its options must be the same on every call.
        num_workers: numbers of workers to change between.
        world_sizes: numbers of ranks that continue an epoch begun on the first of them.
        stops: shares of the epoch, 0 to 1, after which to stop.

    Raises:
        AssertionError: a batch differs; the message says which.

    Examples:
        >>> def make_loader(**where):
        ...     return datapipe.make_loader("shards/", batch_size=2, meta=("key", "valid"), **where)
        >>> datapipe.testing.assert_resumes_exactly(make_loader)
    """
    world = world_sizes[0]
    reference = list(make_loader(num_workers=num_workers[0], rank=0, world_size=world))
    assert reference, "the loader yields no batch at all"
    for share in stops:
        stop = round(share * len(reference))
        for before, after in zip(num_workers, (*num_workers[1:], num_workers[0]), strict=True):
            loader = make_loader(num_workers=before, rank=0, world_size=world)
            state = _stop_after(loader, stop)
            resumed = make_loader(num_workers=after, rank=0, world_size=world)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state, "loading a state and taking it changes it"
            if stop == len(reference):
                expected = _next_run(make_loader, state, num_workers=after, world_size=world)
                assert_same_batches(resumed, expected, f"the run after {stop} steps")
            else:
                assert_same_batches(resumed, reference[stop:], f"resumed after {stop} steps")
        if stop < len(reference):
            _assert_elastic(make_loader, world_sizes, stop)


def assert_same_batches(left: Iterable[Any], right: Iterable[Any], what: str = "batches") -> None:
    """Assert that two runs of batches are equal, bit for bit.

    Raises:
        AssertionError: they are not; the message names the step and the key.

    Examples:
        >>> loader = datapipe.make_loader("shards/", batch_size=2)
        >>> again = datapipe.make_loader("shards/", batch_size=2, num_workers=2)
        >>> assert_same_batches(loader, again)
    """
    lefts, rights = list(left), list(right)
    assert len(lefts) == len(rights), f"{what}: {len(lefts)} steps and {len(rights)} steps"
    for step, (left_batch, right_batch) in enumerate(zip(lefts, rights, strict=True)):
        assert left_batch.keys() == right_batch.keys(), f"{what}, step {step}: keys differ"
        for name, value in left_batch.items():
            other = right_batch[name]
            if isinstance(value, torch.Tensor):
                same = value.dtype == other.dtype and torch.equal(value, other)
            else:
                same = value == other
            assert same, f"{what}, step {step}: {name} differs"


def valid_keys(batches: Iterable[Any]) -> list[str]:
    """Return the keys of all valid samples of some batches, in order.

    Raises:
        AssertionError: batches carry none.

    Examples:
        >>> loader = datapipe.make_loader("shards/", batch_size=4, shuffle=False)
        >>> valid_keys(loader)[:3]
        ['000000000', '000000001', '000000002']
    """
    batches = list(batches)
    assert all({"key", "valid"} <= batch.keys() for batch in batches), (
        "batches carry no keys to compare; make the loader with meta=('key', 'valid')"
    )
    return [
        key
        for batch in batches
        for key, valid in zip(batch["key"], batch["valid"].tolist(), strict=True)
        if valid
    ]


def _next_run(
    make_loader: MakeLoader, state: dict[str, Any], *, num_workers: int, world_size: int
) -> Iterable[Any]:
    """Return the batches after a run that was over: of the next epoch, or none."""
    if state["run"]["steps"]:
        return []
    loader = make_loader(num_workers=num_workers, rank=0, world_size=world_size)
    loader.set_epoch(state["epoch"])
    return loader  # type: ignore[no-any-return]


def _stop_after(loader: Any, steps: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    assert loader.state_dict() == state, "closing the iterator changes the state"
    return state


def _assert_elastic(make_loader: MakeLoader, world_sizes: Sequence[int], stop: int) -> None:
    world = world_sizes[0]
    states, begun = [], []
    for rank in range(world):
        loader = make_loader(num_workers=0, rank=rank, world_size=world)
        iterator = iter(loader)
        begun += valid_keys([next(iterator) for _ in range(stop)])
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states), "the state differs between ranks"
    whole = [
        valid_keys(make_loader(num_workers=0, rank=rank, world_size=world)) for rank in range(world)
    ]
    expected = sorted(key for keys in whole for key in keys)
    for other in world_sizes[1:]:
        rest: list[str] = []
        lengths = set()
        for rank in range(other):
            resumed = make_loader(num_workers=0, rank=rank, world_size=other)
            resumed.load_state_dict(states[0])
            batches = list(resumed)
            lengths.add(len(batches))
            rest += valid_keys(batches)
        assert len(lengths) == 1, f"world size {other}: ranks have {sorted(lengths)} steps"
        assert sorted(begun + rest) == expected, (
            f"stopped after {stop} steps of {world} ranks, {other} ranks do not see the rest "
            "exactly once"
        )
