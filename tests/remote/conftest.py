"""A real S3 server, and a proxy with faults in front of it."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from datapipe.remote.retry import RetryPolicy

from .faulty_proxy import Proxy, client_of, proxying, s3_serving

_NUMBERS = count()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with s3_serving() as address:
        yield address


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
    return client_of(moto)


@pytest.fixture
def put(client: Any, bucket: str) -> Callable[[Path], str]:
    """Copies a folder to the store; its URL."""

    def put(folder: Path) -> str:
        client.put(f"{folder}/", f"{bucket}/{folder.name}/", recursive=True)
        return f"s3://{bucket}/{folder.name}"

    return put
