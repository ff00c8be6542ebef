"""`preview`: one page on what a loader of a dataset gives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from os import PathLike
from typing import Any

from datapipe.declared import Count, Natural, checked
from datapipe.errors import PlanError
from datapipe.inspect.preview.facts import dataset_facts, rejected
from datapipe.inspect.preview.shown import shown_steps
from datapipe.loader.loader import Loader
from datapipe.loader.make_loader import make_loader
from datapipe.report.files import write_whole

ROOM = 6_500_000
"""Characters of samples in a page, which stays below 8 MB with them."""
BATCH = 8  # samples of a step where nothing says how many


@checked(PlanError)
def preview(
    path: Any,
    output: str | PathLike[str],
    *,
    samples: Count = 48,
    step: Natural = 0,
    epoch: Natural = 0,
    rank: Natural = 0,
    world_size: Count = 1,
    **options: Any,
) -> None:
    """Write a page that shows what training will see of a dataset.

    Its samples are those of the batches that `make_loader` gives with these options: the original
    of each image beside what the model sees of it, the text as tokens, with those that are learnt,
    those of images, and those that truncation removes, and packs or padded batches as bars. Beside
    them are histograms of the first 50,000 samples of the epoch, equal images, and rejects.

    Args:
        path: what `make_loader` takes.
        output: `.html` file, replaced if it is there. It needs nothing else, and has under 8 MB.
        samples: how many are shown.
        step: first step that is shown, counted from the beginning of the epoch.
        epoch: its number.
        rank, world_size: whose share of the step.
        options: of `make_loader`; `batch_size` is 8 where nothing says what a batch is.

    Raises:
        PlanError: options are impossible or contradict each other, or there is no such step.
        IndexMismatch: there is no finished dataset at `path`, or its shards changed.
        DatapipeError: the page cannot be written.

    Examples:
        >>> datapipe.preview("shards/", "preview.html", batch_size=4)
    """
    options |= {"rank": rank, "world_size": world_size}
    page = preview_page(path, samples=samples, step=step, epoch=epoch, **options)
    write_whole(output, page, "preview")


@checked(PlanError)
def preview_page(
    path: Any, *, samples: Count, step: Natural, epoch: Natural, title: str = "", **options: Any
) -> str:
    """Return the page that `preview` writes, by default with the path as its title."""
    if not any(options.get(name) is not None for name in ("batch_size", "pack", "max_tokens")):
        options["batch_size"] = BATCH
    options |= {"num_workers": 0, "device": None, "decoder": "cpu", "cache": None}
    with make_loader(path, **options) as loader:
        loader.set_epoch(epoch)
        steps = list(shown_steps(loader, step=step, samples=samples, room=ROOM))
        shown = sum(len(each["samples"]) for each in steps)
        is_path = isinstance(path, str | PathLike)
        content = {
            "title": title or (str(path) if is_path else loader.dataset.title),
            "about": _about(loader, step),
            "full": shown < samples,
            "steps": steps,
            "facts": dataset_facts(loader),
            "rejected": rejected(loader.dataset),
        }
    page = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # Nothing in a script element but its end means anything to a browser.
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    return page.replace("{{content}}", data)


def _about(loader: Loader, step: int) -> dict[str, Any]:
    parts = loader.components()
    options, plan = loader.options, parts.schedule.plan
    images, tokens = parts.context.images, parts.context.tokens
    return {
        "samples": len(loader.dataset),
        "epoch": loader.epoch,
        "step": step,
        "rank": options.rank,
        "world_size": options.world_size,
        "unit": plan.unit,
        "packed": tokens is not None and tokens.pack,
        "images": "" if images is None else _distinct(each.spec for each in images.transforms),
        "text": "" if tokens is None else _distinct(each.rule.spec for each in tokens.texts),
    }


def _distinct(specs: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, specs)))
