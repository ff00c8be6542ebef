"""A remote folder of files, read in ranges, many at a time."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from datapipe.errors import PlanError, StoreError
from datapipe.remote.retry import RetryPolicy, describe, is_final

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PART = 8 << 20  # bytes that one request asks for at most: what is done again when it breaks


@dataclass(kw_only=True)
class Traffic:
    """Counts of requests that were answered, failures that were tried again, and bytes."""

    requests: int = 0
    retries: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """Options of reads from a folder."""

    concurrency: int = 64  # requests at a time
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # credentials, endpoints


def is_remote(path: object) -> TypeGuard[str]:
    """Return whether a path is a URL."""
    return isinstance(path, str) and "://" in path


class RemoteFolder:
    """Reader of the files of one folder by name, for any thread.

    Requests are made by one thread of fsspec's own, in the order in which they were begun. Raises
    `PlanError` if nothing that is installed knows such URLs.
    """

    def __init__(self, url: str, options: RemoteOptions = RemoteOptions()) -> None:
        self.url = url.rstrip("/")
        self.options = options
        self.traffic = Traffic()
        self._filesystem, self._root = _connect(url, options.storage_options)
        self._loop: asyncio.AbstractEventLoop = self._filesystem.loop
        self._slots: asyncio.Semaphore | None = None
        self._draw = random.Random()
        self._lock = threading.Lock()
        self._running: set[Future[bytes]] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self.options)

    def __str__(self) -> str:
        return self.url

    def url_of(self, name: str) -> str:
        """Return the URL of a file, for messages."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        """Read a whole file; a `StoreError` has the cause `FileNotFoundError` if it is missing."""
        return self._begin(self._read_part(name, None)).result()

    def begin(self, name: str, start: int, stop: int) -> Future[bytes]:
        """Begin to read bytes `start` to `stop`; the future raises `StoreError`.

        A range that is larger than a request is read in parts, one after the other, so that a
        broken connection costs the part it broke in.
        """
        return self._begin(self._read_range(name, start, stop))

    def close(self) -> None:
        """Cancel the reads in progress."""
        with self._lock:
            running = list(self._running)
        for future in running:
            future.cancel()

    def _begin(self, work: Any) -> Future[bytes]:
        future: Future[bytes] = asyncio.run_coroutine_threadsafe(work, self._loop)
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def _read_range(self, name: str, start: int, stop: int) -> bytes:
        parts = []
        for first in range(start, stop, _PART):
            parts.append(await self._read_part(name, (first, min(first + _PART, stop))))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_part(self, name: str, span: tuple[int, int] | None) -> bytes:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.options.concurrency)
        data = await self._attempt(name, lambda: self._ask(name, span), span, slots=self._slots)
        self.traffic.bytes += len(data)
        return data

    async def _attempt(
        self,
        name: str,
        ask: Callable[[], Awaitable[T]],
        span: tuple[int, int] | None = None,
        *,
        slots: AbstractAsyncContextManager[None] = nullcontext(),  # noqa: B008  (stateless)
        extra_time: float = 0.0,
        reason: Callable[[Exception], str] = describe,
    ) -> T:
        """Await what `ask` returns, as often as the policy says.

        The `StoreError` of the last attempt names URL, bytes, the reason and the attempt.
        """
        retry, attempt = self.options.retry, 0
        while True:
            attempt += 1
            try:
                async with slots, asyncio.timeout(retry.timeout + extra_time):
                    result = await ask()
                self.traffic.requests += 1
                return result
            except StoreError:
                raise
            except Exception as error:
                part = f", bytes {span[0]:,} to {span[1]:,}" if span else ""
                message = (
                    f"{self.url_of(name)}{part}: {reason(error)} "
                    f"(attempt {attempt} of {retry.attempts})"
                )
                if attempt >= retry.attempts or is_final(error):
                    raise StoreError(message) from error
                self.traffic.retries += 1
                pause = retry.pause(attempt, self._draw)
                logger.info("%s; again in %.1f s", message, pause)
            await asyncio.sleep(pause)

    async def _ask(self, name: str, span: tuple[int, int] | None) -> bytes:
        path = f"{self._root}/{name}"
        start, stop = span or (None, None)
        data: bytes = await self._filesystem._cat_file(path, start=start, end=stop)
        if start is None or stop is None:
            return data
        if len(data) > stop - start:
            raise StoreError(
                f"{self.url_of(name)}: the server sends whole files and no parts of them (HTTP "
                "range requests); serve the dataset with one that does, such as nginx, or copy it"
            )
        if len(data) < stop - start:
            raise ConnectionError(f"{len(data):,} of {stop - start:,} bytes came")
        return data


def _connect(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem that knows a URL, with coroutines, and the folder's path there."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **storage_options)
    except ImportError as error:
        raise PlanError(
            f"{url}: {protocol}:// needs a package that is missing ({error}): pip install "
            "'datapipe[remote]'"
        ) from None
    except ValueError as error:
        raise PlanError(f"{url}: {error}") from None
    if not filesystem.async_impl:
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        filesystem = AsyncFileSystemWrapper(filesystem)
    if filesystem.loop is None:
        from fsspec.asyn import get_loop

        filesystem._loop = get_loop()
    return filesystem, root.rstrip("/")
