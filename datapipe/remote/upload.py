"""Uploads of files to a remote folder."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from datapipe.errors import StoreError
from datapipe.remote.folder import RemoteFolder, RemoteOptions, T
from datapipe.remote.retry import describe

_AT_ONCE = 2  # files on their way: clients of object stores hold parts of each in memory
_LOOKS = 16  # questions about files at once
_SLOWEST = 250_000  # bytes a second; what takes longer is taken for a connection that hangs


class RemoteTarget(RemoteFolder):
    """Folder elsewhere that files are sent to, for any thread; `PlanError` for unknown URLs.

    Coroutines run in fsspec's own thread; begin them with `begin_task` from others.
    """

    def __init__(self, url: str, options: RemoteOptions) -> None:
        super().__init__(url, options)
        self._sending = asyncio.Semaphore(_AT_ONCE)
        self._looking = asyncio.Semaphore(_LOOKS)

    def begin_task(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine that awaits the methods below; `close` cancels it."""
        future: Future[T] = self._begin(work)  # type: ignore[assignment]  # it holds any
        return future

    def read_or_none(self, name: str) -> bytes | None:
        """Return a whole file, None if it is not there; `StoreError` if that cannot be known."""
        try:
            return self.read(name)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if _code(error.__cause__) == "NoSuchBucket":
                raise StoreError(
                    f"{self.url}: there is no such bucket; make it first, or mend the URL"
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

        async with self._sending:
            await self._attempt(name, send, extra_time=size / _SLOWEST, reason=_reason)

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

    def _forget(self) -> None:
        """Empty the client's cache of listings: others write there, too."""
        getattr(self._filesystem, "sync_fs", self._filesystem).invalidate_cache()


def _reason(error: Exception) -> str:
    """Return the reason of a failure; what is missing is the folder, and no file."""
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket or folder ({error})"
    if isinstance(error, PermissionError):
        return f"access is denied ({error}); give credentials that may write there"
    if isinstance(error, NotImplementedError):
        return "nothing can be written there"
    return describe(error)


def _code(error: BaseException) -> str:
    response = getattr(error.__cause__, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
