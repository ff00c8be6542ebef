"""Figures of a dataset as training draws it: sizes, lengths, duplicates, and what was rejected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import StoreError
from datapipe.index.dataset import Dataset
from datapipe.index.files.random_read import gather
from datapipe.index.members import member_kind
from datapipe.inspect.preview.pictures import show_file
from datapipe.loader.batch.sample_rows import read_rows
from datapipe.loader.loader import Loader
from datapipe.pack.journal import REJECTS
from datapipe.plan.units import numbers_of

DRAWN = 50_000
"""Number of samples, from the beginning of the epoch, that the figures describe."""
_BINS = 32
_EXAMPLES = 6
_LARGEST = 32 << 20  # bytes of a rejected file that is opened


def dataset_facts(loader: Loader) -> dict[str, Any]:
    """Return histograms of the first draws of the epoch, shares of datasets, and duplicates."""
    source = loader.components().schedule.origin.source
    # A mixture whose weights change is drawn from phase by phase.
    count = min(*source.bounds(loader.epoch)[1:2], source.count, DRAWN)
    drawn = numbers_of(source.draw(loader.epoch, 0, count))
    columns = loader.dataset.columns
    widths, heights, offsets = columns.image_sides(drawn)
    values: dict[str, Any] = {
        "longer side, pixels": np.maximum(widths, heights).astype(np.float64),
        "width / height": widths / np.maximum(heights, 1),
        "images of a sample": np.diff(offsets),
    }
    if source.measure is not None:
        sizes = source.measure(drawn)
        values |= {"tokens": sizes.tokens, "learnt tokens": sizes.labels}
    else:
        values["bytes of text"] = gather(columns.text_bytes, drawn)
    kinds = Counter(loader.dataset.dataset_names(drawn))
    return {
        "drawn": count,
        "epoch": source.count,
        "histograms": {name: _histogram(each) for name, each in values.items() if len(each)},
        "datasets": dict(kinds) if len(kinds) > 1 else {},
        "duplicates": _duplicates(loader, np.unique(drawn)),
    }


def _histogram(values: Any) -> dict[str, Any]:
    """Return edges and counts; the bins grow with the values where these differ much."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return {"edges": [low, high], "counts": [len(values)]}
    whole = np.issubdtype(values.dtype, np.integer)
    bins = int(min(_BINS, high - low + 1)) if whole else _BINS
    grows = low > 0 and high / low > 8
    bounds = (np.geomspace if grows else np.linspace)(low, high, bins + 1)
    counts, _ = np.histogram(np.clip(values, bounds[0], bounds[-1]), bounds)
    return {"edges": [float(f"{edge:.5g}") for edge in bounds], "counts": counts.tolist()}


def _duplicates(loader: Loader, samples: Int64) -> dict[str, Any]:
    """Return images whose files are equal, by size and checksum, among some samples."""
    rows = read_rows(loader.dataset, samples)
    is_image = np.array([member_kind(ext) == "image" for ext in rows.extensions], bool)
    at = np.flatnonzero(is_image[rows.codes])
    owners = np.searchsorted(rows.bounds, at, side="right") - 1
    names = (rows.sizes[at].astype(np.uint64) << np.uint64(32)) | rows.crc32[at].astype(np.uint64)
    _, group, counts = np.unique(names, return_inverse=True, return_counts=True)
    groups: dict[int, list[str]] = {}
    for number in np.flatnonzero(counts[group] > 1).tolist():
        groups.setdefault(int(group[number]), []).append(rows.keys[owners[number]])
    largest = sorted(groups.values(), key=len, reverse=True)[:_EXAMPLES]
    return {
        "images": len(at),
        "repeated": int((counts[counts > 1] - 1).sum()),
        "groups": [{"count": len(keys), "keys": keys[:_EXAMPLES]} for keys in largest],
    }


def rejected(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the reasons for which packing left inputs out, with examples of each."""
    reasons: dict[str, dict[str, Any]] = {}
    for line in _reject_lines(dataset):
        try:
            reject = dict(json.loads(line))
        except ValueError:
            continue  # a line that a crash has cut
        name = f"{reject.get('error', '')}: {reject.get('reason', '')}"
        found = reasons.setdefault(name, {"reason": name, "count": 0, "examples": []})
        found["count"] += 1
        if len(found["examples"]) < _EXAMPLES:
            file = str(reject.get("file") or reject.get("source", ""))
            found["examples"].append({"file": file, "picture": _picture(file)})
    return sorted(reasons.values(), key=lambda reason: -reason["count"])


def _reject_lines(dataset: Dataset) -> Iterator[bytes]:
    for part in dataset.parts:
        opened = part.dataset()
        if isinstance(opened.folder, Path):
            path = opened.folder / REJECTS
            if path.exists():
                with path.open("rb") as file:
                    yield from file
        elif opened.manifest.rejected:
            try:
                yield from opened.folder.read(REJECTS).splitlines()
            except StoreError:
                continue  # datasets may be copied without it


def _picture(file: str) -> str:
    """Return a data URL of a rejected file that is still there and can be opened, else nothing."""
    try:
        path = Path(file)
        if path.is_file() and path.stat().st_size <= _LARGEST:
            return show_file(path.read_bytes())
    except (OSError, ValueError):
        pass
    return ""
