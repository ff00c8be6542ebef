"""Remote files are read whole or in ranges, whatever servers and networks do."""

import errno
import pickle
import random
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from datapipe.errors import PlanError, StoreError
from datapipe.remote.folder import RemoteFolder, RemoteOptions, is_remote
from datapipe.remote.retry import RetryPolicy, describe, is_final
from tests.waiting import PATIENCE

from .server import serving

pytest.importorskip("aiohttp")

QUICK = RetryPolicy(first_pause=0.001, longest_pause=0.002, timeout=PATIENCE)
DATA = random.Random(5).randbytes(100_000)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "a.tar").write_bytes(DATA)
    with serving(tmp_path) as server:
        yield server


def open_folder(server, **options):
    return RemoteFolder(server.url, RemoteOptions(**{"retry": QUICK, **options}))


def test_a_file_is_read_whole_and_in_ranges(server):
    folder = open_folder(server)
    assert folder.read("a.tar") == DATA
    assert folder.begin("a.tar", 10, 20).result() == DATA[10:20]
    assert folder.begin("a.tar", 0, len(DATA)).result() == DATA
    assert folder.traffic.bytes == 2 * len(DATA) + 10
    assert folder.traffic.requests == 3


def test_a_server_that_hangs_is_given_up_on(server):
    server.fault = lambda number, name: "hang" if number == 1 else None
    retry = RetryPolicy(attempts=1000, first_pause=0.001, longest_pause=0.001, timeout=0.3)
    folder = open_folder(server, retry=retry)
    assert folder.begin("a.tar", 0, 10).result() == DATA[:10]
    assert folder.traffic.retries >= 1  # a busy machine may be late as well


def test_a_failure_that_lasts_names_url_bytes_and_attempt(server):
    folder = open_folder(server)
    with pytest.raises(StoreError, match=r"b.tar: there is no such file \(attempt 1 of 6\)"):
        folder.read("b.tar")
    assert len(server.asked) == 1
    server.fault = lambda number, name: "503"
    message = rf"{server.url}/a.tar, bytes 1,000 to 2,000: HTTP 503 .*attempt 6 of 6"
    with pytest.raises(StoreError, match=message):
        folder.begin("a.tar", 1000, 2000).result()
    assert len(server.asked) == 1 + 6
    assert folder.traffic.retries == 5
    server.fault = lambda number, name: "whole"
    with pytest.raises(StoreError, match="HTTP range requests"):
        folder.begin("a.tar", 10, 20).result()


def test_a_large_range_that_breaks_goes_on_with_the_part_that_broke(server, tmp_path):
    large = random.Random(6).randbytes(20 << 20)  # three parts
    (tmp_path / "large.tar").write_bytes(large)
    server.fault = lambda number, name: "cut" if number == 2 else None
    assert open_folder(server).begin("large.tar", 500, len(large)).result() == large[500:]
    spans = [span for _, span in server.asked]
    assert len(spans) == 4
    assert len(set(spans)) == 3
    assert spans[1] == spans[2]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_so_many_requests_are_made_at_once(server, concurrency):
    server.fault = lambda number, name: "slow"
    # As worker processes get it
    folder = pickle.loads(pickle.dumps(open_folder(server, concurrency=concurrency)))
    futures = [folder.begin("a.tar", n * 100, n * 100 + 100) for n in range(6)]
    assert [future.result() for future in futures] == [DATA[n * 100 :][:100] for n in range(6)]
    assert server.most <= concurrency
    assert concurrency == 1 or server.most > 1
    assert len(server.asked) == 6


def test_what_is_given_up_ends(server):
    server.fault = lambda number, name: "hang"
    folder = open_folder(server, concurrency=1)
    futures = [folder.begin("a.tar", 0, 10) for _ in range(3)]
    folder.close()
    assert all(future.cancelled() for future in futures)
    server.fault = lambda number, name: None
    assert folder.begin("a.tar", 0, 10).result() == DATA[:10]


def test_urls_are_told_from_paths():
    assert is_remote("s3://bucket/a")
    assert not is_remote("folder/a")
    assert not is_remote(Path("s3:/bucket"))


@pytest.mark.skipif(bool(find_spec("gcsfs")), reason="gcsfs is installed")
def test_a_protocol_whose_package_is_missing_names_the_extra():
    with pytest.raises(PlanError, match=r"datapipe-vlm\[remote\]"):
        RemoteFolder("gs://bucket/shards")


def answer(**attributes):
    """An error as clients raise it for an answer of a server."""
    error = OSError("the answer")
    vars(error).update(attributes)
    return error


LAST = [
    *(FileNotFoundError(), PermissionError(), OSError(errno.EACCES, "denied"), ValueError()),
    *(answer(status=400), answer(status=403), answer(code=401)),
    answer(response=SimpleNamespace(status_code=401)),
]
PASS = [
    *(OSError(errno.EIO, "I/O"), ConnectionResetError(), TimeoutError()),
    *(answer(status=408), answer(status=429), answer(status=500), answer(code=503)),
    answer(response=SimpleNamespace(status_code=503)),
]


def test_failures_that_last_are_told_from_others():
    assert [error for error in LAST if not is_final(error)] == []
    assert [error for error in PASS if is_final(error)] == []
    for error in (*LAST[-2:], *PASS[-2:]):
        assert ("access is denied" in describe(error)) == is_final(error)


def test_credentials_that_are_missing_or_cannot_be_renewed_are_named():
    exceptions = pytest.importorskip("botocore.exceptions")
    expired = exceptions.SSOTokenLoadError(error_msg="none there")
    missing = exceptions.NoCredentialsError()
    assert is_final(expired)
    assert is_final(missing)
    assert "expired" in describe(expired)
    assert "anon=true" in describe(missing)
    assert not is_final(exceptions.ConnectionClosedError(endpoint_url="http://host"))


def test_pauses_grow_and_are_drawn():
    policy = RetryPolicy(first_pause=1.0, longest_pause=5.0)
    draw = random.Random(0)
    for attempt, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (9, 5.0)):
        pauses = [policy.pause(attempt, draw) for _ in range(200)]
        assert 0 <= min(pauses) < 0.2 * longest
        assert 0.8 * longest < max(pauses) <= longest
