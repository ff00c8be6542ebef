"""`datapipe diff`: differences of two datasets."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

import datapipe
from datapipe.cli.options import AsJson
from datapipe.cli.output import print_table, shown
from datapipe.errors import DatapipeError

_Dataset = Annotated[str, typer.Argument(help="Folder or URL of shards, or folder of tars.")]


def diff(a: _Dataset, b: _Dataset, as_json: AsJson = False) -> None:
    """Compare the samples of two datasets by keys and checksums. No shard is read.

    Exit status: 0 if they are the same, 1 if they differ, 2 after an error.
    """
    try:
        found = datapipe.diff_datasets(a, b)
    except DatapipeError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps({"is_same": found.is_same, **asdict(found)}))
    else:
        print_table(
            "The samples are the same" if found.is_same else "The samples differ",
            {
                "samples": f"A {found.samples[0]:,}, B {found.samples[1]:,}",
                "equal": f"{found.equal:,}",
                "changed": f"{found.changed:,}",
                "renamed": f"{found.renamed:,}",
                "only in A": f"{found.only_a:,}",
                "only in B": f"{found.only_b:,}",
            },
        )
        names = {"only_a": "only in A", "only_b": "only in B"}
        for name, keys in found.examples.items():
            if keys:
                print(shown(f"{names.get(name, name)}: {', '.join(keys)}"))
    raise typer.Exit(0 if found.is_same else 1)
