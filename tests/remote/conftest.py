"""A real S3 server, and a proxy with faults in front of it."""

from itertools import count

import pytest

from datapipe import pack_dataset
from datapipe.remote.retry import RetryPolicy

from .faulty_proxy import client_of, proxying, s3_serving

_NUMBERS = count()


@pytest.fixture(scope="session")
def moto():
    with s3_serving() as address:
        yield address


@pytest.fixture
def proxy(moto, monkeypatch, tmp_path):
    monkeypatch.setattr(RetryPolicy, "pause", lambda *_: 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with proxying(moto) as proxy:
        yield proxy


@pytest.fixture
def bucket(proxy, client):
    name = f"bucket-{next(_NUMBERS)}"
    client.mkdir(name)
    return name


@pytest.fixture
def client(moto):
    return client_of(moto)


@pytest.fixture
def pack(proxy, tmp_path):
    """Packs raw data of the store, to a folder by default."""

    def pack(raw, out=None, **options):
        given = {"staging": tmp_path / "staging", "storage_options": proxy.storage_options}
        out = out or tmp_path / "out"
        return pack_dataset(raw, out, **{"shard_size": 3, "workers": 1, **given, **options})

    return pack


@pytest.fixture
def local(tmp_path, contents):
    """Packs raw data here; what is in the output."""

    def local(raw, **options):
        pack_dataset(raw, tmp_path / "local", **{"shard_size": 3, **options})
        return contents(tmp_path / "local")

    return local


@pytest.fixture
def put(client, bucket):
    """Copies a folder to the store; its URL."""

    def put(folder):
        client.put(f"{folder}/", f"{bucket}/{folder.name}/", recursive=True)
        return f"s3://{bucket}/{folder.name}"

    return put
