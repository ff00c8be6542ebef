"""A remote folder of files, read in ranges, many at a time."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from datapipe.errors import PlanError, StoreError
from datapipe.extras import install_command
from datapipe.remote.retry import RetryPolicy, describe, is_final

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PART = 8 << 20  # bytes that one request asks for at most: what is done again when it breaks
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_S3 = ("s3", "s3a")
_SECRET = re.compile(r"key|secret|token|password|auth|cookie|sas|connection", re.IGNORECASE)


@dataclass(kw_only=True)
class Traffic:
    """Counts of requests answered, failures tried again, stuck reads started again, and bytes."""

    requests: int = 0
    retries: int = 0
    hedges: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """Options of reads from a folder."""

    concurrency: int = 64  # requests at a time
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # Credentials and endpoints, which no message shows.
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def is_remote(path: object) -> TypeGuard[str]:
    """Return whether a path is a URL."""
    return isinstance(path, str) and "://" in path


class NoRangesError(StoreError):
    """A server sends whole files only, so no file of it can be read in parts."""


class RemoteFolder:
    """Reader of the files of one folder by name, for any thread.

    Requests are made by one thread of fsspec's own, in the order in which they were started. Raises
    `PlanError` if nothing that is installed knows such URLs, or the URL has a password.
    """

    _client_attempts = 1  # at a request of S3, each time that we make it

    def __init__(self, url: str, options: RemoteOptions = RemoteOptions()) -> None:
        self.url = url.rstrip("/")
        self.options = options
        self.traffic = Traffic()
        self._filesystem, self._root = _connect(url, options, self._client_attempts)
        self._loop: asyncio.AbstractEventLoop = self._filesystem.loop
        self._slots = asyncio.Semaphore(options.concurrency)
        self._draw = random.Random()
        self._seconds: deque[float] = deque(maxlen=128)  # that the latest reads took
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self.options)

    def __str__(self) -> str:
        return self.url

    def url_of(self, name: str) -> str:
        """Return the URL of a file, for messages."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        """Read a whole file; a `StoreError` has the cause `FileNotFoundError` if it is missing."""
        return self.begin_task(self._read_part(name, None)).result()

    def begin(self, name: str, start: int, stop: int) -> Future[bytes]:
        """Begin to read bytes `start` to `stop`; the future raises `StoreError`.

        A range that is larger than a request is read in parts, one after the other, so that a
        broken connection costs the part it broke in.
        """
        return self.begin_task(self._read_range(name, start, stop))

    def begin_task(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine that runs in fsspec's own thread; `close` cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> None:
        """Cancel the reads in progress."""
        with self._lock:
            running = list(self._running)
        for future in running:
            future.cancel()

    async def _read_range(self, name: str, start: int, stop: int) -> bytes:
        spans = ((first, min(first + _PART, stop)) for first in range(start, stop, _PART))
        parts = [await self._read_part(name, span) for span in spans]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_part(self, name: str, span: tuple[int, int] | None) -> bytes:
        ask = functools.partial(self._ask, name, span)
        if span is None:
            data = await self._attempt(name, ask, slots=self._slots)
        else:
            extra = (span[1] - span[0]) / self.options.retry.slowest
            hedged = functools.partial(self._hedged, ask)
            data = await self._attempt(name, hedged, span, slots=self._slots, extra_time=extra)
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
                message = self._without_secrets(
                    f"{self.url_of(name)}{part}: {reason(error)} "
                    f"(attempt {attempt} of {retry.attempts})"
                )
                if attempt >= retry.attempts or is_final(error):
                    raise StoreError(message) from error
                self.traffic.retries += 1
                pause = retry.pause(attempt, self._draw)
                logger.info("%s; again in %.1f s", message, pause)
            await asyncio.sleep(pause)

    async def _hedged(self, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """Await what `ask` returns; if that is stuck, ask again and take the first answer."""
        stuck_after = self.options.retry.stuck_after(self._seconds)
        began, reads = self._loop.time(), [asyncio.ensure_future(ask())]
        try:
            done, _ = await asyncio.wait(reads, timeout=stuck_after)
            allowed = 1 + self.options.retry.hedge_share * self.traffic.requests
            if not done and self.traffic.hedges < allowed:
                self.traffic.hedges += 1
                reads.append(asyncio.ensure_future(ask()))
            for number, read in enumerate(asyncio.as_completed(reads), 1):
                try:
                    data = await read
                    break
                except Exception:
                    if number == len(reads):
                        raise
            self._seconds.append(self._loop.time() - began)
            return data
        finally:
            for each in reads:
                each.cancel()

    def _forget(self) -> None:
        """Empty the client's cache of listings: others write there, too."""
        getattr(self._filesystem, "sync_fs", self._filesystem).invalidate_cache()

    def _without_secrets(self, text: str) -> str:
        """Return a text without the secrets in storage options: servers may repeat them."""
        for secret in _secrets(getattr(self._filesystem, "storage_options", {})):
            text = text.replace(secret, "***")
        return text

    async def _ask(self, name: str, span: tuple[int, int] | None) -> bytes:
        path = f"{self._root}/{name}"
        start, stop = span or (None, None)
        data: bytes = await self._filesystem._cat_file(path, start=start, end=stop)
        if start is None or stop is None:
            return data
        if len(data) > stop - start:
            raise NoRangesError(
                f"{self.url_of(name)}: the server sends only whole files, not parts of them (HTTP "
                "range requests); use a server that sends parts, such as nginx, or copy the dataset"
            )
        if len(data) < stop - start:
            raise ConnectionError(f"{len(data):,} of {stop - start:,} bytes arrived")
        return data


def _connect(url: str, options: RemoteOptions, client_attempts: int) -> tuple[Any, str]:
    """Return the filesystem that knows a URL, with coroutines, and the folder's path there."""
    import fsspec

    protocol = url.partition("://")[0]
    if _PASSWORD.search(url):
        raise PlanError(
            f"{_PASSWORD.sub('://', url)}: a password in a URL would be shown in messages; give it "
            "as a storage option (for HTTP, in a .netrc with client_kwargs trust_env=true)"
        )
    storage = dict(options.storage_options)
    if protocol in _S3:
        given = (fsspec.config.conf.get("s3", {}) | storage).get("config_kwargs") or {}
        storage["config_kwargs"] = {
            "retries": {"mode": "standard", "total_max_attempts": client_attempts},
            "max_pool_connections": 2 * options.concurrency,  # by default ten
            **given,
        }
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **storage)
    except ImportError as error:
        raise PlanError(
            f"{url}: {protocol}:// needs a package that is missing ({error}): "
            f"{install_command('remote')}"
        ) from None
    except ValueError as error:
        raise PlanError(f"{url}: {error}") from None
    if protocol in _S3:
        filesystem.retries = 1  # of an instance that no others share: it has our `config_kwargs`
    if not filesystem.async_impl:
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        filesystem = AsyncFileSystemWrapper(filesystem)
    if filesystem.loop is None:
        from fsspec.asyn import get_loop

        filesystem._loop = get_loop()
    return filesystem, root.rstrip("/")


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    """Yield the values of storage options that are secrets, judged by their names."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _secrets(each, f"{name} {key}")
    elif isinstance(value, str) and len(value) > 5 and _SECRET.search(name):
        yield value
