"""`datapipe inspect`: what a dataset is, and what it takes in each form."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datapipe.cli.options import ArrayImage, AsJson, ImageSize
from datapipe.cli.output import print_table
from datapipe.cli.values import parse_array_image
from datapipe.progress import readable_size
from datapipe.report.table import aligned

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec
    from datapipe.index.dataset import Dataset


def inspect(
    dataset: Annotated[
        str, typer.Argument(help="Folder or URL of packed shards, or folder of arrays.")
    ],
    image_size: ImageSize = None,
    image: ArrayImage = None,
    as_json: AsJson = False,
) -> None:
    """Say what a dataset holds, and what it would take as shards, cached, or as arrays."""
    from datapipe.index.dataset import open_dataset

    opened = open_dataset(dataset)
    spec = parse_array_image(image_size, image)
    forms: dict[str, dict[str, int]] = {}
    if opened.manifest.images and spec is not None and opened.manifest.arrays is None:
        forms = _forms(opened, spec)
    if as_json:
        print(json.dumps({"dataset": _described(opened), "forms": forms}))
        return
    print_table(f"{dataset}", {name: str(value) for name, value in _described(opened).items()})
    if forms and spec is not None:
        print(f"\nImages of {spec.height}x{spec.width}, {spec.resize}")
        rows = [[name, *map(readable_size, form.values())] for name, form in forms.items()]
        for line in aligned((["form", "disk", "memory"], rows)):
            print(f"  {line}")
        print("\nWhat each would give here: `datapipe profile`, with the options of your loader")


def _forms(dataset: Dataset, image: ImageSpec) -> dict[str, dict[str, int]]:
    """Return the bytes of each form of a dataset, and those that are free."""
    from datapipe.decode.array_spec import array_spec
    from datapipe.decode.transform import make_transform
    from datapipe.profile.sizes import form_sizes, free_memory
    from datapipe.remote.folder import RemoteFolder

    sizes = form_sizes(dataset, make_transform(array_spec(image)))
    home = dataset.home if isinstance(dataset.folder, RemoteFolder) else dataset.folder
    return {
        "shards": {"disk": dataset.bytes, "memory": 0},
        "shards, cached decoded": {"disk": dataset.bytes, "memory": sizes.cache},
        "arrays": {"disk": sizes.arrays or 0, "memory": 0},
        "free": {"disk": shutil.disk_usage(home).free, "memory": free_memory()},
    }


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
