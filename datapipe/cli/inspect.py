"""`datapipe inspect`: what a dataset is, and in which form to keep it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datapipe.cli.options import ArrayImage, AsJson, ImageSize
from datapipe.cli.output import print_table
from datapipe.cli.values import parse_array_image
from datapipe.errors import PlanError
from datapipe.progress import readable_size
from datapipe.report.table import aligned

if TYPE_CHECKING:
    from datapipe.index.dataset import Dataset
    from datapipe.profile.storage_advisor import Facts, FormCost


def inspect(
    dataset: Annotated[
        str, typer.Argument(help="Folder or URL of packed shards, or folder of arrays.")
    ],
    image_size: ImageSize = None,
    image: ArrayImage = None,
    rate: Annotated[float | None, typer.Option(help="Images a second that training takes.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs that it is trained for.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Say what a dataset holds, and what it would take and give as shards, cached, or as arrays.

    Decodes some of its images for half a second, to know how fast this machine is.
    """
    if rate is not None and not rate > 0:
        raise PlanError(f"--rate {rate}: give images a second, such as 2000")
    if epochs < 1:
        raise PlanError(f"--epochs {epochs}: at least 1 is needed")
    from datapipe.decode.array_spec import spec_of
    from datapipe.index.dataset import open_dataset
    from datapipe.profile.storage_advisor import advise, forms, look

    opened = open_dataset(dataset)
    arrays = opened.manifest.arrays
    spec = parse_array_image(image_size, image)
    if arrays is not None and arrays.image and image_size is None and image is None:
        spec = spec_of(arrays.image)
    facts = None
    if opened.manifest.images and spec is not None and (arrays is None or arrays.image):
        facts = look(opened, spec)
    costs = [] if facts is None else forms(facts)
    advice = [] if facts is None else advise(facts, rate=rate, epochs=epochs)
    if as_json:
        found: dict[str, Any] = {"dataset": _described(opened)}
        if facts is not None:
            found |= {"facts": asdict(facts), "forms": [asdict(cost) for cost in costs]}
        print(json.dumps(found | {"advice": advice}))
        return
    print_table(f"{dataset}", {name: str(value) for name, value in _described(opened).items()})
    if facts is not None and spec is not None:
        _print_forms(facts, costs, rate, f"{spec.height}x{spec.width}, {spec.resize}")
        print("\nWhat to take")
        for line in advice:
            print(f"  {line}")


def _described(dataset: Dataset) -> dict[str, Any]:
    manifest, columns = dataset.manifest, dataset.columns
    rows: dict[str, Any] = {
        "form": "shards" if manifest.arrays is None else "arrays",
        "samples": f"{manifest.samples:,}",
        "images": f"{manifest.images:,}",
        "size": readable_size(manifest.bytes),
        "rejected": f"{manifest.rejected:,}",
    }
    if manifest.images:
        pixels = int((columns.image_width.astype("int64") * columns.image_height).sum())
        rows["mean image"] = f"{pixels / manifest.images / 1e6:.2f} MPix"
    if manifest.arrays is not None:
        rows["arrays"] = ", ".join(sorted(manifest.arrays.files))
    else:
        rows["shards"] = f"{len(manifest.shards):,}"
    return rows


def _print_forms(facts: Facts, costs: list[FormCost], rate: float | None, title: str) -> None:
    decodes = "" if facts.decode is None else f"decodes {1 / facts.decode:,.0f}/s and "
    print(
        f"\nImages of {title}: a core {decodes}copies {1 / facts.copy:,.0f}/s; {facts.cores} cores"
    )
    reads = "reads an image" if rate is None else f"reads at {rate:,.0f}/s"
    per = "" if rate is None else "/s"
    rows = [
        [
            cost.name,
            *map(readable_size, (cost.disk, cost.memory)),
            f"{cost.rate:,.0f}/s",
            f"{readable_size(round(cost.read * (rate or 1)))}{per}" if cost.read else "-",
            f"{cost.before:,.0f} s",
        ]
        for cost in costs
    ]
    rows.append(["free", readable_size(facts.disk), readable_size(facts.memory), "", "", ""])
    for line in aligned((["form", "disk", "memory", "at most", reads, "before"], rows)):
        print(f"  {line}")
