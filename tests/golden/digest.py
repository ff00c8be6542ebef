"""Digests of batches, and what differs between two."""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

import datapipe

from .configurations import Case, open_loader
from .data import Data

HERE = Path(__file__).parent
DIGESTS = HERE / "digests.json"
STATES = HERE / "states"

DECODED_BY = ("torch", "simplejpeg", "pillow")
"""Packages that pixels come from."""

PIXELS = "pixel_values"
_ABSENT = "-"

Entry = dict[str, Any]


def versions(*, dali: bool) -> dict[str, str]:
    """Versions of the packages that pixels depend on."""
    names = [*DECODED_BY, *(["nvidia-dali-cuda130"] if dali else [])]
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def digest(runs: Iterable[tuple[str, Iterable[dict[str, Any]]]]) -> Entry:
    """Digest the batches of several ranks.

    Args:
        runs: a name and its batches, each.

    Returns:
        `sha256` of everything, and `keys`: for each name and key 6 hexadecimal digits a batch, "-"
        where the batch has no such key.
    """
    whole = hashlib.sha256()
    keys: dict[str, list[str]] = {}
    for name, batches in runs:
        mine: dict[str, list[str]] = {}
        step = -1
        for step, batch in enumerate(batches):
            for key, value in batch.items():
                own = hashlib.sha256(_content(value)).digest()
                whole.update(f"{name} {step} {key} ".encode() + own)
                mine.setdefault(key, [_ABSENT] * step).append(own.hex()[:6])
            for digests in mine.values():
                digests += [_ABSENT] * (step + 1 - len(digests))
        keys |= {f"{name} {key}": digests for key, digests in mine.items()}
        whole.update(f"{name} has {step + 1}".encode())
    return {
        "sha256": whole.hexdigest(),
        "keys": {key: " ".join(digests) for key, digests in keys.items()},
    }


def difference(found: Entry, golden: Entry, *, but: str | None = None) -> str | None:
    """The first step and key that differ between two entries; None where nothing does.

    Args:
        found: what came now.
        golden: what came when it was recorded.
        but: a key that may differ.
    """
    differing: list[tuple[int, str]] = []
    for key in golden["keys"] | found["keys"]:
        if but is None or not key.endswith(f" {but}"):
            steps = [entry["keys"].get(key, "").split() for entry in (found, golden)]
            pairs = enumerate(zip_longest(*steps))
            differing += [(step, key) for step, (now, then) in pairs if now != then][:1]
    if differing:
        first = min(step for step, _ in differing)
        names = ", ".join(key for step, key in differing if step == first)
        later = ", ".join(sorted(key for step, key in differing if step != first))
        return f"step {first} differs first, in {names}" + (later and f"; later {later}")
    if but is None and found["sha256"] != golden["sha256"]:
        return "the order of keys, or bytes beyond the first digits of a digest, differ"
    return None


def _content(value: Any) -> bytes:
    """Dtype, shape, layout and bytes of a tensor; other values with their types, as text."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}".encode()
    layout = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
    head = f"{value.dtype} {tuple(value.shape)}{layout} ".encode()
    return head + value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def run_case(
    data: Data,
    case: Case,
    folder: Path,
    *,
    num_workers: int,
    state: dict[str, Any] | None = None,
) -> tuple[Entry, dict[str, Any] | None]:
    """Digest the batches of a case.

    Args:
        data: where the data is.
        case: the configuration.
        folder: an empty folder for what it writes.
        num_workers: of each loader.
        state: to go on from, instead of from one taken now.

    Returns:
        the digests, and the state that a run was continued from.
    """
    ranks = case.world if case.stop is None else case.goes_on

    def make(rank: int, world: int) -> datapipe.Loader:
        return open_loader(data, case, folder, num_workers=num_workers, rank=rank, world_size=world)

    def runs() -> Iterator[tuple[str, Iterable[dict[str, Any]]]]:
        for rank in range(ranks):
            loader = make(rank, ranks)
            if state is not None:
                loader.load_state_dict(state)
            yield f"rank {rank}", _batches(loader)

    if case.stop is not None and state is None:
        with contextlib.closing(make(0, case.world)) as loader:
            iterator = iter(loader)
            for _ in range(case.stop):
                next(iterator)
            state = json.loads(json.dumps(loader.state_dict()))
    return digest(runs()), state


def _batches(loader: datapipe.Loader) -> Iterator[dict[str, Any]]:
    with contextlib.closing(loader):
        yield from loader


def run_plan(data: Data, arguments: Iterable[Any]) -> dict[str, Any]:
    """What `datapipe plan --json` says, but for the time it took."""
    from datapipe.cli import main

    said, before = io.StringIO(), sys.argv
    sys.argv = ["datapipe", "plan", str(data.shards), *map(str, arguments), "--json"]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    report: dict[str, Any] = json.loads(said.getvalue())
    return {name: _rounded(value) for name, value in report.items() if not name.endswith("seconds")}


def _rounded(value: Any) -> Any:
    return round(value, 12) if isinstance(value, float) else value


def state_path(name: str) -> Path:
    """Where the state of a case is kept."""
    return STATES / f"{name.replace(', ', '-').replace(' ', '-')}.json"
