"""`datapipe inspect`: a dataset in figures, what it takes in each form, and single samples."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import datapipe
from datapipe.cli.options import ArrayImage, AsJson, ImageSize
from datapipe.cli.output import print_table, shown, shown_lines
from datapipe.cli.values import parse_array_image, refuse_unwritable
from datapipe.errors import PlanError
from datapipe.progress import readable_size
from datapipe.report.table import aligned, counted

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec
    from datapipe.inspect.sample import InspectedSample
    from datapipe.inspect.summary import DatasetSummary

_MOST_TEXT = 20_000  # characters of a text or record


def inspect(
    dataset: Annotated[
        str, typer.Argument(help="Folder or URL of packed shards, or folder of arrays.")
    ],
    sample: Annotated[
        str | None,
        typer.Argument(help="Sample to show: its number, from 0, or its key, such as 000000012."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the sample's image to this file, as stored."),
    ] = None,
    by_key: Annotated[
        bool, typer.Option("--key", help="SAMPLE is a key, although it looks like a number.")
    ] = False,
    image_size: ImageSize = None,
    image: ArrayImage = None,
    as_json: AsJson = False,
) -> None:
    """Say what a dataset holds, or show one sample of it.

    With --image-size or --image, also what it takes as shards, cached, or as arrays.
    """
    is_sized = image_size is not None or image is not None
    if sample is None:
        if output is not None or by_key:
            raise PlanError("--output and --key are about one sample; give its number or key, too")
        spec = parse_array_image(image_size, image) if is_sized else None
        _inspect_dataset(dataset, spec, as_json=as_json)
        return
    if is_sized:
        raise PlanError("--image-size and --image are about a whole dataset; leave SAMPLE out")
    refuse_unwritable(output=output)
    # Keys of packs have leading zeros, which numbers do not have.
    is_number = not by_key and re.fullmatch(r"0|[1-9][0-9]{0,17}", sample) is not None
    found = datapipe.inspect_sample(dataset, int(sample) if is_number else sample)
    if as_json:
        fields = asdict(found)
        fields.pop("images")
        print(json.dumps(fields))
    else:
        _print_sample(found)
    if output is not None:
        _write_images(found, output, quiet=as_json)


def _print_sample(sample: InspectedSample) -> None:
    rows = {"number": f"{sample.number:,}", "source": sample.source, "shard": sample.shard}
    rows |= {name: str("none" if v is None else v) for name, v in sample.columns.items()}
    print_table(shown(f"sample {sample.key}"), {shown(k): shown(v) for k, v in rows.items()})
    cells = [
        [shown(each.name), f"{each.offset:,}", f"{each.size:,}", f"{each.crc32:08x}"]
        for each in sample.members
    ]
    print()
    for line in aligned((["member", "offset", "bytes", "crc32"], cells)):
        print(f"  {line}")
    for each in sample.members:
        if each.problem:
            print(shown(f"{each.name} is damaged: {each.problem}"))
    record = (
        "" if sample.record is None else json.dumps(sample.record, indent=1, ensure_ascii=False)
    )
    for title, text in (("text", sample.text), ("record", record)):
        if text:
            print(f"\n{title}")
            print(shown_lines(text[:_MOST_TEXT]))
            if len(text) > _MOST_TEXT:
                print(
                    f"... and {counted(len(text) - _MOST_TEXT, 'more character')}; --json has all"
                )


def _write_images(sample: InspectedSample, output: Path, *, quiet: bool) -> None:
    if not sample.images:
        raise PlanError(f"sample {sample.key} has no image; leave --output out")
    for number, content in enumerate(sample.images):
        # a.jpg, a-1.jpg, a-2.jpg
        path = output.with_stem(f"{output.stem}-{number}") if number else output
        path.write_bytes(content)
        if not quiet:
            print(f"wrote {path} ({readable_size(len(content))})")


def _inspect_dataset(dataset: str, spec: ImageSpec | None, *, as_json: bool) -> None:
    summary = datapipe.summarize_dataset(dataset)
    forms: dict[str, dict[str, int]] = {}
    if spec is not None and summary.form == "arrays":
        raise PlanError(
            f"{dataset} holds arrays, whose images have one form; leave --image-size and --image "
            "out, or give the shards"
        )
    if summary.images and spec is not None:
        forms = _forms(dataset, spec)
    if as_json:
        print(json.dumps({"dataset": asdict(summary), "forms": forms}))
        return
    print_table(dataset, _described(summary))
    if forms and spec is not None:
        print(f"\nImages of {spec.height}x{spec.width}, {spec.resize}")
        rows = [[name, *map(readable_size, form.values())] for name, form in forms.items()]
        for line in aligned((["form", "disk", "memory"], rows)):
            print(f"  {line}")
        print(
            "\nSpeed of each on this machine: `datapipe profile`, with the options of your loader"
        )


def _forms(path: str, image: ImageSpec) -> dict[str, dict[str, int]]:
    from datapipe.convert.array_files import array_bytes
    from datapipe.decode.array_spec import array_spec
    from datapipe.decode.transform import make_transform
    from datapipe.index.dataset import open_dataset
    from datapipe.profile.sizes import cache_bytes, free_memory
    from datapipe.remote.folder import RemoteFolder

    dataset = open_dataset(path)
    kept = make_transform(array_spec(image))
    home = dataset.home if isinstance(dataset.folder, RemoteFolder) else dataset.folder
    return {
        "shards": {"disk": dataset.bytes, "memory": 0},
        "shards, cached decoded": {"disk": dataset.bytes, "memory": cache_bytes(dataset, kept)},
        "arrays": {"disk": array_bytes(dataset, kept.spec), "memory": 0},
        "free": {"disk": shutil.disk_usage(home).free, "memory": free_memory()},
    }


def _described(summary: DatasetSummary) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "form": summary.form,
        "samples": f"{summary.samples:,}",
        "images": f"{summary.images:,}",
        "size": readable_size(summary.bytes),
        "rejected": f"{summary.rejected:,}",
    }
    if summary.mean_pixels is not None:
        rows["mean image"] = f"{summary.mean_pixels / 1e6:.2f} MPix"
    if summary.arrays:
        rows["arrays"] = ", ".join(summary.arrays)
    else:
        rows["shards"] = f"{summary.shards:,}"
    if summary.fields:
        rows["fields"] = shown(", ".join(summary.fields))
    return rows
