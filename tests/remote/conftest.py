"""A real S3 server, and a proxy with faults in front of it."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from datapipe import pack_dataset
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
def pack(proxy: Proxy, tmp_path: Path) -> Callable[..., Any]:
    """Packs raw data of the store, to a folder by default."""

    def pack(raw: str, out: Any = None, **options: Any) -> Any:
        given = {"staging": tmp_path / "staging", "storage_options": proxy.storage_options}
        out = out or tmp_path / "out"
        return pack_dataset(raw, out, **{"shard_size": 3, "workers": 1, **given, **options})

    return pack


@pytest.fixture
def local(tmp_path: Path, contents: Any) -> Callable[..., dict[str, bytes]]:
    """Packs raw data here; what is in the output."""

    def local(raw: Any, **options: Any) -> dict[str, bytes]:
        pack_dataset(raw, tmp_path / "local", **{"shard_size": 3, **options})
        found: dict[str, bytes] = contents(tmp_path / "local")
        return found

    return local


@pytest.fixture
def put(client: Any, bucket: str) -> Callable[[Path], str]:
    """Copies a folder to the store; its URL."""

    def put(folder: Path) -> str:
        client.put(f"{folder}/", f"{bucket}/{folder.name}/", recursive=True)
        return f"s3://{bucket}/{folder.name}"

    return put
