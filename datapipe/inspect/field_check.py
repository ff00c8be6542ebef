"""Check of the columns of fields of the samples' records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from datapipe.index.dataset import Dataset
from datapipe.index.files.sealed_json import unseal
from datapipe.index.manifest import Manifest
from datapipe.index.record_fields import ABOUT, FIELDS, FieldFiles
from datapipe.inspect.findings import Finding
from datapipe.store.record_fields import read_fields


def check_fields(home: Path, manifest: Manifest) -> list[Finding]:
    """Return the damage of the columns of fields that checksums and numbers of samples show."""
    found = []
    for folder in sorted(path for path in (home / FIELDS).glob("*") if path.is_dir()):
        if _name(folder, manifest) == "":
            problem = "is damaged; `datapipe index --fields` rebuilds it"
            found.append(Finding(file=f"{FIELDS}/{folder.name}/{ABOUT}", problem=problem))
    for files in _current(home, manifest):
        for shard in manifest.shards:
            if files.read(shard) is None:
                problem = "is missing or damaged; it is rebuilt when `where=` names the field"
                found.append(Finding(file=_file(home, files.path(shard)), problem=problem))
    return found


def check_field_values(dataset: Dataset, shards: Sequence[int]) -> Iterator[Finding]:
    """Yield the columns of fields that differ from the records of these shards, which are whole."""
    home, manifest = dataset.home, dataset.manifest
    current = _current(home, manifest)
    if not current or not shards:
        return
    for number, values in read_fields(dataset, [files.name for files in current], shards):
        for files in current:
            stored = files.read(manifest.shards[number])
            if stored is not None and not stored.equals(values[files.name]):
                problem = (
                    f"field {files.name!r} differs from the records of "
                    f"{manifest.shards[number].name}; remove the file, and it is rebuilt"
                )
                yield Finding(
                    file=_file(home, files.path(manifest.shards[number])), problem=problem
                )


def _current(home: Path, manifest: Manifest) -> list[FieldFiles]:
    """Return the columns of this manifest; those of an earlier one are extended when next used."""
    names = (_name(folder, manifest) for folder in sorted((home / FIELDS).glob("*")))
    return [FieldFiles(home / FIELDS, name) for name in names if name]


def _name(folder: Path, manifest: Manifest) -> str | None:
    """Return the name of a field; None for one of an earlier manifest, "" if it is damaged."""
    try:
        about = unseal((folder / ABOUT).read_bytes())
        return str(about["name"]) if about["fingerprint"] == manifest.fingerprint else None
    except FileNotFoundError:  # as a read that was interrupted leaves it
        return None
    except (OSError, ValueError, LookupError):
        return ""


def _file(home: Path, path: Path) -> str:
    return path.relative_to(home).as_posix()
