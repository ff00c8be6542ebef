"""A real S3 server, and a proxy with faults in front of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from datapipe.remote.retry import RetryPolicy

from .faulty_proxy import Proxy, proxying

_NUMBERS = count()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    moto_server = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    yield "{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def proxy(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    monkeypatch.setattr(RetryPolicy, "pause", lambda *_: 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with proxying(moto) as proxy:
        yield proxy


@pytest.fixture
def bucket(proxy: Proxy, client: Any) -> str:
    name = f"bucket-{next(_NUMBERS)}"
    client.mkdir(name)
    return name


@pytest.fixture
def client(moto: str) -> Any:
    s3fs = pytest.importorskip("s3fs")
    return s3fs.S3FileSystem(
        key="someone", secret="other", endpoint_url=f"http://{moto}", use_listings_cache=False
    )
