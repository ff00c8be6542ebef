"""Changes to a loader, ranked by their predicted gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from shlex import quote

from datapipe.errors import PlanError
from datapipe.index.tar.listing import names_shards
from datapipe.loader.loader import Loader
from datapipe.profile.forecast import WORTH, Forecast, Remedy, predict
from datapipe.profile.image_remedies import image_remedies
from datapipe.profile.measure.alone import library_stage
from datapipe.profile.pipeline import run_pipeline
from datapipe.profile.sizes import FITS, free_memory
from datapipe.progress import readable_size
from datapipe.report.table import ratio

_HELD = 0.3  # share of the time, from which on a transform counts as holding the lock
_STORAGE = 0.1  # share of reads from storage, from which on a page cache is worth filling


def predict_remedies(loader: Loader, forecast: Forecast, *, shards: str) -> list[Remedy]:
    """Predict the remedies that apply to a loader."""
    found = [*_page_cache(loader, forecast, shards)]
    if library_stage(loader.components().context) != "decode":
        # DALI has threads of its own, and does not work in processes.
        found += [*_workers(forecast), *_processes(forecast)]
    return [*found, *image_remedies(loader, forecast, shards)]


def other_decoder(
    loader: Loader, make: Callable[..., Loader], *, rate: float, seconds: float
) -> list[Remedy]:
    """Run the other decoder in turn with the loader's own, each for so many seconds.

    The remedy's rate is its gain times `rate`, that of the loader. The list is empty if there is no
    other decoder for these images.
    """
    images = loader.components().context.images
    if images is None or not len(images.columns.image_width):
        return []
    name = "dali" if images.decoder is None else "cpu"
    try:
        other = make(decoder=name)
    except PlanError:
        return []  # not installed, or it lacks an option
    try:
        rates = [run_pipeline(each, seconds=seconds).rate for each in (other, loader)]
    finally:
        other.close()
    gain = ratio(*rates)
    return [
        Remedy(
            name=name,
            title=f"images by {'NVIDIA DALI' if name == 'dali' else 'the CPU kernels'}",
            how=f'make_loader(decoder="{name}")',
            rate=gain * rate,
            gain=gain,
            source="measured",
            changes={"decoder": name},
        )
    ]


def _workers(forecast: Forecast) -> Iterator[Remedy]:
    """Propose the fewest workers that are as fast as any number."""
    now, cores = forecast.setup.workers, forecast.setup.cores
    most = max(4 * cores, 2 * now, 8)
    numbers = sorted({*range(1, min(most, 16) + 1), *range(16, most + 1, 8), max(now, 1)})
    setups = {number: replace(forecast.setup, workers=number) for number in numbers}
    rates = {number: predict(forecast.cost, setup) for number, setup in setups.items()}
    best = max(rates.values())
    fewest = next(number for number in numbers if rates[number] * WORTH >= best)
    if fewest == now:
        return
    more = fewest > now
    yield forecast.remedy(
        "workers",
        f"{'more' if more else 'fewer'} workers: {fewest} instead of {now}",
        f"make_loader(num_workers={fewest})",
        setup=setups[fewest],
        note="" if more else "as fast, with less memory",
        changes={"num_workers": fewest},
    )


def _processes(forecast: Forecast) -> Iterator[Remedy]:
    """Propose worker processes if the transform keeps the interpreter's lock from the others."""
    held, workers = forecast.held, forecast.setup.cores
    if forecast.processes or held < _HELD:
        return
    yield forecast.remedy(
        "processes",
        "worker processes, each with its own interpreter lock",
        f'make_loader(workers="processes", num_workers={workers})',
        setup=replace(forecast.setup, workers=workers, processes=True),
        # The factor is that of threads, which wait for each other. Processes have what others left.
        factor=1 - forecast.run.usage.others_share,
        note=f"Python code holds the lock {held:.0%} of the time; the transform must be importable",
        changes={"workers": "processes", "num_workers": workers},
    )


def _page_cache(loader: Loader, forecast: Forecast, shards: str) -> Iterator[Remedy]:
    """Propose the dataset in the page cache, if it fits and is read from storage."""
    size, parts = loader.dataset.bytes, loader.dataset.parts
    if forecast.cold < _STORAGE or size > FITS * free_memory():
        return
    if any(part.is_remote for part in parts):
        return
    # A shell expands braces and patterns.
    if names_shards(shards):
        files = shards.replace("::", " ")
    elif shards.endswith(".tar"):
        files = quote(shards)
    else:
        whole = loader.components().schedule.origin.is_alone
        given = [shards.rstrip("/") if whole else str(part.dataset().folder) for part in parts]
        kinds = ["tar" if part.arrays is None else "npy" for part in parts]
        named = zip(given, kinds, strict=True)
        files = " ".join(f"{quote(folder)}/*.{kind}" for folder, kind in named)
    yield forecast.remedy(
        "page cache",
        f"read the shards once, so that the page cache holds them ({readable_size(size)})",
        f"cat {files} > /dev/null",
        cost=forecast.cost_of_reads(0.0),
        setup=replace(forecast.setup, storage=None),
        note="a first epoch does the same",
    )
