"""`datapipe verify`: every byte of a dataset compared with what was written."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import islice
from shlex import quote
from typing import Annotated

import typer

import datapipe
from datapipe.cli.fields import own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import ENGINE_FLAGS, AsJson
from datapipe.cli.output import print_table, shown
from datapipe.inspect.findings import Finding, VerifyReport
from datapipe.inspect.member_table import ONLY_INDEX, UNCHECKED
from datapipe.inspect.shard_check import AS_PACKED
from datapipe.progress import readable_size
from datapipe.report.table import counted
from datapipe.workers.engine import EngineSpec

_SHOWN = 8  # findings of each file
_FILES = 20  # with findings


@with_flags(
    own_flag("deep", "Also decode every image and parse every text.", bool, False), *ENGINE_FLAGS
)
def verify(
    dataset: Annotated[
        str,
        typer.Argument(
            help="Folder or URL of shards, folder of arrays, or tars from other writers."
        ),
    ],
    flags: Flags,
    as_json: AsJson = False,
) -> None:
    """Compare every byte of a dataset with its checksums, and name each damaged sample.

    Exits with 1 if something is damaged. Nothing is changed. --json lists all findings.
    """
    try:
        options = flags.given_to(None, EngineSpec)
        report = datapipe.verify_dataset(dataset, **options)
    except KeyboardInterrupt:  # there is nothing to continue
        print("\nInterrupted; the dataset is as it was.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({"whole": report.is_whole, **asdict(report)}))
    else:
        _print(report, deep="deep" in options)
    if not report.is_whole:
        raise typer.Exit(1)


def _print(report: VerifyReport, *, deep: bool) -> None:
    files: dict[str, list[Finding]] = {}
    for finding in report.findings:
        files.setdefault(finding.file, []).append(finding)
    for name, findings in islice(files.items(), _FILES):
        _print_file(name, findings)
    if len(files) > _FILES:
        print(f"... and {counted(len(files) - _FILES, 'more file')}; --json lists all")
    state = "is damaged" if report.findings else "is whole" if report.members else "seems whole"
    rows = {
        "samples": f"{report.samples:,}",
        "damaged": f"{report.damaged_samples:,}",
        "compared": f"{counted(report.members, 'member')}, {readable_size(report.bytes)}"
        + (", decoded" if deep else ""),
        "time": f"{report.seconds:.1f} s",
    }
    if report.findings:
        rows["findings"] = f"{len(report.findings):,} in {counted(len(files), 'file')}"
    print_table(f"{report.dataset} {state}", rows)
    for note in report.notes:
        print(shown(f"note: {note}"))
    if report.findings:
        print(f"next: {next_step(report)}")


def _print_file(name: str, findings: list[Finding]) -> None:
    if len(findings) == 1:
        print(shown(str(findings[0])))
        return
    print(shown(f"{name}: {len(findings):,} findings"))
    for finding in findings[:_SHOWN]:
        print(shown(f"  {finding.place}{finding.problem}"))
    if len(findings) > _SHOWN:
        print(f"  ... and {len(findings) - _SHOWN:,} more; --json lists all")


def next_step(report: VerifyReport) -> str:
    name = quote(report.dataset)
    files = {finding.file for finding in report.findings}
    if any(file.endswith(".npy") and "/" not in file for file in files):
        return "restore these files from a copy, or convert the shards again into a new folder"
    if all("run `datapipe" in finding.problem for finding in report.findings):
        return "the command named above"
    harmed = [finding for finding in report.findings if finding.file.endswith(".tar")]
    if harmed and all(finding.problem.startswith(AS_PACKED) for finding in harmed):
        return 'restoring does not help: pack the inputs again, or skip them: on_error="skip"'
    if harmed:
        return (
            "restore these files from a copy; without one, `datapipe repair "
            f"{name} NEW_FOLDER` copies the intact samples, and lists the inputs to pack again"
        )
    if any(finding.problem.endswith(ONLY_INDEX) for finding in report.findings):
        return (
            "restore these files from a copy, or make the view again; `datapipe repair "
            f"{name} NEW_FOLDER` copies its other samples"
        )
    if any(file.endswith((".parquet", ".json")) and "/" not in file for file in files):
        unchecked = any(UNCHECKED in finding.problem for finding in report.findings)
        option = "--in-place --unchecked" if unchecked else "--in-place"
        return (
            f"restore these files from a copy; without one, `datapipe repair {option} {name}` "
            "rebuilds them from the shards"
        )
    if any("; remove the f" in finding.problem for finding in report.findings):
        return "remove these files, which are derived; they are rebuilt when they are needed"
    return "nothing; these files are derived, and are rebuilt when the dataset is opened"
