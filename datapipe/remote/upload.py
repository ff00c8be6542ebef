"""Uploads of files to a remote folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from datapipe.errors import StoreError
from datapipe.remote.folder import RemoteFolder, RemoteOptions
from datapipe.remote.retry import code_of, describe

logger = logging.getLogger(__name__)

_AT_ONCE = 2  # files on their way: clients of object stores hold parts of each in memory
_LOOKS = 16  # questions about files at once


class RemoteTarget(RemoteFolder):
    """Folder elsewhere that files are sent to, for any thread; `PlanError` for unknown URLs.

    Coroutines run in fsspec's own thread; begin them with `begin_task` from others.
    """

    _client_attempts = 3  # at a part of a large file, before the whole file is sent again

    def __init__(self, url: str, options: RemoteOptions) -> None:
        super().__init__(url, options)
        self._sending = asyncio.Semaphore(_AT_ONCE)
        self._looking = asyncio.Semaphore(_LOOKS)

    def read_or_none(self, name: str) -> bytes | None:
        """Return a whole file, None if it is not there; `StoreError` if that cannot be known."""
        try:
            return self.read(name)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if code_of(error.__cause__) == "NoSuchBucket":
                raise StoreError(
                    f"{self.url}: there is no such bucket; create it first, or correct the URL"
                ) from error
            return None

    async def put(self, path: Path, name: str) -> None:
        """Send a file, and check that as many bytes have arrived; else raise `StoreError`."""
        size = path.stat().st_size

        async def send() -> None:
            await self._filesystem._put_file(str(path), f"{self._root}/{name}")
            there = await self._look(name)
            if there != size:
                raise ConnectionError(f"{there or 0:,} of {size:,} bytes arrived")
            self.traffic.bytes += size

        extra = size / self.options.retry.slowest
        async with self._sending:
            await self._attempt(name, send, extra_time=extra, reason=_reason)

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Abort unfinished multipart uploads of files, which killed runs leave in S3.

        Other stores let them expire.
        """
        client = self._filesystem
        bucket, _, folder = self._root.partition("/")
        prefix = f"{folder}/" if folder else ""
        if not hasattr(client, "_abort_mpu"):
            return

        async def abort() -> None:
            page = {"Bucket": bucket, "Prefix": prefix}
            while page:
                answer = await client._call_s3("list_multipart_uploads", **page)
                for upload in answer.get("Uploads", []):
                    if upload["Key"].removeprefix(prefix) in names:
                        with suppress(FileNotFoundError):
                            await client._abort_mpu(bucket, upload["Key"], upload["UploadId"])
                after = {key: answer.get(f"Next{key}") for key in ("KeyMarker", "UploadIdMarker")}
                page = page | after if answer.get("IsTruncated") else {}

        try:
            await self._attempt("", abort, reason=_reason)
        except StoreError as error:
            logger.warning(
                "%s; unfinished uploads cannot be listed, so parts of some may remain there: "
                "give the bucket a lifecycle rule that removes them",
                error,
            )

    async def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it is not there, `StoreError` if unknown."""
        async with self._looking:
            return await self._attempt(name, lambda: self._look(name), reason=_reason)

    def size_now(self, name: str) -> int | None:
        """Wait for the size of a file; None if it is not there, `StoreError` if unknown."""
        return self.begin_task(self.size(name)).result()

    async def move(self, name: str, to: str) -> None:
        """Give a file another name; raise `StoreError` if it is not there afterwards."""

        async def copy() -> None:
            await self._filesystem._cp_file(f"{self._root}/{name}", f"{self._root}/{to}")

        await self._attempt(to, copy, reason=_reason)
        await self.remove(name)

    async def remove(self, name: str) -> None:
        """Remove a file, if it is there; raise `StoreError` if that cannot be done."""

        async def remove() -> None:
            with suppress(FileNotFoundError):
                await self._filesystem._rm_file(f"{self._root}/{name}")

        await self._attempt(name, remove, reason=_reason)

    async def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted; none where it is missing or cannot be listed.

        Raises `StoreError` without an answer.
        """
        root = f"{self._root}/{folder}".rstrip("/")

        async def look() -> list[str]:
            try:
                self._forget()
                found = await self._filesystem._ls(root, detail=False)
            except (FileNotFoundError, PermissionError):
                return []
            names = (str(path).rstrip("/").removeprefix(root).strip("/") for path in found)
            return sorted(name for name in names if name)

        return await self._attempt("", look, reason=_reason)

    async def _look(self, name: str) -> int | None:
        try:
            self._forget()
            about = await self._filesystem._info(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return int(about["size"])


def _reason(error: Exception) -> str:
    """Return the reason of a failure; what is missing is the folder, and no file."""
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket or folder ({error})"
    if isinstance(error, NotImplementedError):
        return "nothing can be written there"
    return describe(error)
