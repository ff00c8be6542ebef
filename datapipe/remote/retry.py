"""The policy of retries: failures worth another attempt, pauses, and reads that are stuck."""

from __future__ import annotations

import errno
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_FINAL = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})
# Of HTTP: request timeout, conflict, too early, too many requests, and the server's own faults.
_AGAIN = frozenset({408, 409, 425, 429})
# Of S3: requests that were damaged on their way, which it answers with 400.
_TORN = frozenset({"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"})
# Codes of S3, and classes of clients that could not renew what they had.
_EXPIRED = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
        *("RefreshError", "SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError"),
    }
)
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
    timeout: float = 60.0  # seconds that one attempt may take, beyond `slowest`
    slowest: float = 100_000.0  # bytes a second; a connection that is slower hangs
    hedge_factor: float = 4.0  # a read is stuck after so many times what 95 % of others took
    hedge_share: float = 0.05  # of reads that are begun a second time, at most; 0 for none

    def pause(self, attempt: int, draw: random.Random) -> float:
        """Return the seconds to wait after the `attempt`-th attempt (from 1) failed."""
        return draw.uniform(0.0, min(self.longest_pause, self.first_pause * 2.0 ** (attempt - 1)))

    def stuck_after(self, latest: Collection[float]) -> float | None:
        """Return the seconds after which a read is started again; None if too few are known.

        `latest` are the durations of the latest reads. Source: J. Dean and L. Barroso, "The Tail at
        Scale", CACM 2013 ("hedged requests").
        """
        if len(latest) < 16 or not self.hedge_share:
            return None
        usual = sorted(latest)[(len(latest) - 1) * 95 // 100]
        return min(max(self.hedge_factor * usual, self.first_pause), self.timeout / 2)


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would end the same way."""
    if isinstance(error, TimeoutError | ConnectionError):
        return False
    if code_of(error) in _TORN:
        return False
    status = _status(error)
    if status is not None:
        return status < 500 and status not in _AGAIN
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
        return True
    if isinstance(error, OSError):
        return error.errno in _FINAL
    if type(error).__name__ in _MISSING | _EXPIRED:
        return True
    # What breaks within a transfer has classes of its own in every client.
    return type(error).__module__.partition(".")[0] not in ("aiohttp", "botocore", "aiobotocore")


def describe(error: BaseException) -> str:
    """Return a failure in words, for a message."""
    status, code = _status(error), code_of(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if {code, type(error).__name__} & _EXPIRED:
        return f"the credentials have expired ({error}); renew them and start again"
    if type(error).__name__ in _MISSING:
        return (
            f"no usable credentials were found ({error}); set them, such as AWS_PROFILE, or give "
            "the storage option anon=true for a public bucket"
        )
    if isinstance(error, PermissionError) or status in (401, 403):
        return (
            f"access is denied ({getattr(error, 'message', '') or error}); give credentials that "
            "are valid and allow this"
        )
    if status == 400 and code in ("400", ""):
        return "HTTP 400, as for expired credentials; renew them and start again"
    if status is not None:
        return f"HTTP {status} {code} {getattr(error, 'message', '') or error}".strip()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def code_of(error: BaseException) -> str:
    """Return the code of an S3 error, such as "SlowDown"; "" for other errors."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    # Of aiohttp, gcsfs and the Hub; aiohttp has `code` too, and warns of it.
    for holder, name in ((error, "status"), (error, "code"), (response, "status_code")):
        if isinstance(status := getattr(holder, name, None), int):
            return status
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _response(error: BaseException) -> dict[str, Any]:
    """Return the answer that S3's client keeps in the error that s3fs translates."""
    response = getattr(error.__cause__, "response", None)
    return response if isinstance(response, dict) else {}
