"""Packs for a URL: shards are made in a local folder, and each is sent once it is finished."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datapipe.errors import DatapipeError, IndexMismatch, PackError
from datapipe.index.columns import COLUMNS
from datapipe.index.dataset import mirror_index
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import (
    MANIFEST,
    UNFINISHED,
    Manifest,
    Shard,
    parse_manifest,
    read_manifest,
    replace_file,
)
from datapipe.index.parquet import file_sha256
from datapipe.index.record_fields import FIELDS
from datapipe.index.sidecars import write_sidecars
from datapipe.pack.journal import working_folder
from datapipe.pack.writers.shards import writing
from datapipe.progress import Progress, readable_size
from datapipe.remote.folder import RemoteOptions, is_remote
from datapipe.remote.upload import RemoteTarget

logger = logging.getLogger(__name__)

_SENT = "uploads.json"
_DATASET = "dataset"
_READ_ONLY = ("http://", "https://")
_HERE = ("file://", "local://")
_TEMPORARY = ".*.tmp-*"  # in any folder
_MADE_HERE = (UNFINISHED, COLUMNS, FIELDS, "where", "tokens-*", _TEMPORARY, f".{COLUMNS}.*")


def local_path(out: str | os.PathLike[str]) -> Path | None:
    """Return the folder that `out` names; None where it is remote."""
    if not is_remote(out):
        return Path(out)
    return Path(out.partition("://")[2]) if out.startswith(_HERE) else None


def open_stage(
    out: str | os.PathLike[str],
    staging: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    *,
    append: bool,
) -> UploadStage | None:
    """Return the way to a URL, None for a folder; PackError if an option does not apply there."""
    if local_path(out) is None:
        if append:
            raise PackError(
                f"{out}: --append needs a dataset in a folder; append to a copy here, and copy it "
                "there (its manifest, dataset.json, last)"
            )
        return UploadStage(str(out), Path(staging) if staging else None, storage_options)
    for name, value in (("--staging", staging), ("storage_options", storage_options)):
        if value:
            raise PackError(f"{name} does not apply to a folder ({out}); leave it out")
    return None


class UploadStage:
    """Upload of one dataset to a URL, by way of a staging folder.

    The staging folder holds `dataset/`, a pack like any other, and `.pack/uploads.json`: the shards
    that have arrived, each by the sha256 of its index. All of it stays until everything has
    arrived, so an interrupted pack continues from here. PackError if nothing can be written to such
    a URL, PlanError if nothing installed knows it.

    Attributes:
        folder: where the dataset is packed to.
        target: the folder at the URL.
        direct: whether tars are there already when `send` is called.
    """

    def __init__(
        self, url: str, staging: Path | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        if url.startswith(_READ_ONLY):
            raise PackError(
                f"{url}: nothing can be written over HTTP; give a folder or a URL of an object "
                "store, such as s3://bucket/shards"
            )
        self.target = RemoteTarget(url, RemoteOptions(storage_options=storage_options or {}))
        digest = hashlib.sha256(self.target.url.encode()).hexdigest()[:32]
        self._home = (staging or cache_folder() / "staging").absolute() / digest
        self.folder = self._home / _DATASET
        self.direct = False
        self._sent: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._running: dict[str, Future[None]] = {}

    @contextmanager
    def at_work(self, *, dry_run: bool, lock_check: bool) -> Iterator[None]:
        """Hold the staging folder against a second pack, and stop sending at the end."""
        try:
            if dry_run:
                yield
                return
            with working_folder(self._home, lock_check=lock_check) as work:
                self._sent = _read_sent(work / _SENT)
                yield
        except DatapipeError as error:
            # The user knows the URL, not the folder, which we chose.
            here, there = str(self.folder), f"{self.target.url}, staged in {self.folder}"
            if here not in str(error) or there in str(error):
                raise
            raise type(error)(str(error).replace(here, there, 1)) from error
        finally:
            self.target.close()
            with self._lock:  # the next pack may begin at once: nothing is noted any more
                self._ended = True

    def finished(self) -> Manifest | None:
        """Return the dataset that is at the URL, whole, or None.

        PackError if something else is there, IndexMismatch if a shard is not what the manifest
        says, StoreError if it cannot be known.
        """
        url = self.target.url
        content = self.target.read_or_none(MANIFEST)
        if content is None:
            self._refuse_others()
            return None
        manifest = parse_manifest(content, self.target.url_of(MANIFEST))
        if manifest.foreign:
            raise PackError(f"{url} holds shards that someone else wrote; give a new URL")
        sizes = self._sizes(shard.name for shard in manifest.shards)
        for shard in manifest.shards:
            if (size := sizes[shard.name]) != shard.bytes:
                state = "is missing" if size is None else f"has {size:,} bytes, not {shard.bytes:,}"
                raise IndexMismatch(
                    f"{self.target.url_of(shard.name)} {state}; restore it, or pack the raw data "
                    "again to a new URL"
                )
        return manifest

    def _refuse_others(self) -> None:
        """Refuse a URL that holds something not sent from this staging folder."""
        if (self._home / UNFINISHED / _SENT).exists():
            return
        found = self.target.begin_task(self.target.names()).result()
        if found and found != [UNFINISHED]:
            raise PackError(
                f"{self.target.url}: something is there that is no dataset, nor one that is being "
                f"sent from {self._home} (found: {', '.join(found[:5])}); give a new URL, remove "
                "what is there, or continue with the --staging that it was begun with"
            )

    def send(self, shard: Shard) -> None:
        """Begin to send a shard that is in place, unless that was done.

        StoreError if one before it could not be sent, PackError if its index is damaged.
        """
        index = self.folder / shard.index
        if file_sha256(index) != shard.index_sha256:
            raise PackError(
                f"{index} is damaged: it is not what was written; remove {self._home} and run the "
                "same command again"
            )
        with self._lock:
            ended = [future for future in self._running.values() if future.done()]
            if shard.name not in self._running:
                self._note()  # from now on what is there is ours
                self._running[shard.name] = self.target.begin_task(self._send_shard(shard))
        for future in ended:
            future.result()

    async def _send_shard(self, shard: Shard) -> None:
        names = (shard.index,) if self.direct else (shard.name, shard.index)
        if self._sent.get(shard.name) == shard.index_sha256:
            sizes = [await self.target.size(name) for name in names]
            if sizes == [(self.folder / name).stat().st_size for name in names]:
                return
        for name in names:
            await self.target.put(self.folder / name, name)
        with self._lock:
            if not self._ended:
                self._sent[shard.name] = shard.index_sha256
                self._note()

    def _note(self) -> None:
        content = seal({"url": self.target.url, "shards": self._sent}, indent=1)
        with writing(self._home):
            replace_file(self._home / UNFINISHED / _SENT, content.encode())

    def finish(self) -> None:
        """Send what is left, the manifest last, and remove the staging folder."""
        manifest = read_manifest(self.folder)
        size = readable_size(manifest.bytes)
        with Progress("uploading", unit="shard", total=len(manifest.shards)) as progress:
            for shard in manifest.shards:
                self.send(shard)
            for shard in manifest.shards:
                self._running[shard.name].result()
                progress.advance(note=f"of {size}")
        shards = {name for shard in manifest.shards for name in (shard.name, shard.index)}
        self._send_files(self.folder, _published(self.folder) - shards - {MANIFEST})
        self.target.begin_task(self.target.abort_uploads(shards)).result()
        self._send_files(self.folder, [MANIFEST])
        if self.direct:
            for name in self.target.begin_task(self.target.names(UNFINISHED)).result():
                self.target.begin_task(self.target.remove(f"{UNFINISHED}/{name}")).result()
        self.remove()

    def add_sidecars(self, manifest: Manifest, kinds: Collection[str]) -> None:
        """Write those sidecars of the dataset at the URL that are not there yet."""
        if not kinds:
            return
        index, _ = mirror_index(self.target)
        with tempfile.TemporaryDirectory(dir=self._home) as name:
            folder = Path(name)
            write_sidecars(folder, manifest, kinds, home=index)
            sizes = self._sizes(_published(folder))
            self._send_files(folder, [name for name, size in sizes.items() if not size])

    def remove(self) -> None:
        """Remove the staging folder: what was in it has arrived."""
        shutil.rmtree(self._home, ignore_errors=True)

    def _sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the sizes of files at the URL; None for those that are missing."""
        tasks = {name: self.target.begin_task(self.target.size(name)) for name in names}
        return {name: task.result() for name, task in tasks.items()}

    def _send_files(self, folder: Path, names: Collection[str]) -> None:
        sending = [
            self.target.begin_task(self.target.put(folder / name, name)) for name in sorted(names)
        ]
        for future in sending:
            future.result()


def _published(folder: Path) -> set[str]:
    """Return the files of a dataset that others need, without those that are derived."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        path.as_posix()
        for path in found
        if not any(Path(path.parts[0]).match(pattern) for pattern in _MADE_HERE)
        and not path.match(_TEMPORARY)
    }


def _read_sent(path: Path) -> dict[str, str]:
    try:
        return dict(unseal(path.read_bytes())["shards"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is damaged; all shards are sent again", path)
        return {}
