"""The policy of retries: failures that are worth another attempt, and the pauses before it."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import dataclass

_FINAL = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})
# Of HTTP: too early, too many requests, request timeout, and everything that is the server's fault.
_AGAIN = frozenset({408, 425, 429})
# Of S3's client: what no server was asked about.
_MISSING = frozenset({"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Attempts at reads and pauses between them.

    Pauses double from attempt to attempt, and each is drawn between nothing and that: clients that
    failed together must not come back together. Source: M. Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog 2015 ("full jitter").
    """

    attempts: int = 6  # at least 1
    first_pause: float = 0.5  # seconds before the second attempt, at most
    longest_pause: float = 20.0  # seconds before any attempt, at most
    timeout: float = 60.0  # seconds that one attempt may take

    def pause(self, attempt: int, draw: random.Random) -> float:
        """Return the seconds to wait after the `attempt`-th attempt (from 1) failed."""
        return draw.uniform(0.0, min(self.longest_pause, self.first_pause * 2.0 ** (attempt - 1)))


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would end the same way."""
    if isinstance(error, asyncio.TimeoutError | TimeoutError | ConnectionError):
        return False
    status = _status(error)
    if status is not None:
        return status < 500 and status not in _AGAIN
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
        return True
    if isinstance(error, OSError):
        return error.errno in _FINAL
    if type(error).__name__ in _MISSING:
        return True
    # What breaks within a transfer has classes of its own in every client.
    return type(error).__module__.partition(".")[0] not in ("aiohttp", "botocore", "aiobotocore")


def describe(error: BaseException) -> str:
    """Return a failure in words, for a message."""
    status = _status(error)
    if status is not None:
        return f"HTTP {status} {getattr(error, 'message', '') or ''}".strip()
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None
