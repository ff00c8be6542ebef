"""Packing to a URL: options and folders, whatever is behind the URL."""

import shutil

import pytest

from datapipe import PackError, PlanError, StoreError, make_loader, pack_dataset
from datapipe.testing import assert_same_batches

from ..remote.faulty_proxy import bucket_serving


@pytest.fixture
def raw(tmp_path, make_folder):
    return make_folder(tmp_path / "raw", 5)


@pytest.fixture
def url(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    yield f"memory://{tmp_path.name}/shards"
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
def unsent(tmp_path, raw):
    """Options of a pack to a URL, all of it staged, as its server refused the last index."""
    pytest.importorskip("s3fs")
    with bucket_serving("bucket") as (proxy, _):
        options = {"shard_size": 2, "staging": tmp_path / "staging"}
        options["storage_options"] = proxy.storage_options
        proxy.fault = lambda _, asked: (
            "expired" if asked.method == "PUT" and asked.key.endswith("02.parquet") else None
        )
        with pytest.raises(StoreError):
            pack_dataset(raw, "s3://bucket/x", **options)
        proxy.fault = lambda number, request: None
        yield proxy, options


def test_what_was_packed_and_not_sent_is_sent_later(tmp_path, raw, unsent):
    proxy, options = unsent
    with pytest.raises(PackError, match=r"s3://bucket/x, staged in .*other options \(check"):
        pack_dataset(raw, "s3://bucket/x", check="header", **options)
    (dataset,) = (tmp_path / "staging").glob("*/dataset")
    (dataset / ".nv-meta").mkdir()
    (dataset / ".nv-meta/.split.yaml.tmp-1").touch()  # as a run that was killed leaves it
    report = pack_dataset(raw, "s3://bucket/x", **options)
    assert (report.inputs, report.finished_before) == (0, False)
    assert "x/dataset.json" in proxy.sent()
    assert not [name for name in proxy.sent() if "tmp-" in name]
    assert not list((tmp_path / "staging").iterdir())


def test_other_data_under_the_same_url_is_refused(tmp_path, raw, url, make_folder):
    pack_dataset(raw, url)
    with pytest.raises(PackError, match=rf"{url}: the raw data is not what this was packed from"):
        pack_dataset(make_folder(tmp_path / "other", 6), url)


def test_a_folder_may_be_named_by_a_url(tmp_path, raw, contents):
    pack_dataset(raw, f"file://{tmp_path}/there")
    pack_dataset(raw, tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("memory://x", {"append": True}, "memory://x: --append needs a dataset in a folder"),
        ("out", {"staging": "here"}, "--staging does not apply to a folder"),
        ("out", {"storage_options": {"key": "x"}}, "storage_options does not apply"),
        ("gopher://host/x", {}, "gopher"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, raw, monkeypatch, out, options, message):
    monkeypatch.chdir(tmp_path)
    error = PlanError if out.startswith("gopher") else PackError
    with pytest.raises(error, match=message):
        pack_dataset(raw, out, **options)


def test_an_index_that_was_damaged_here_is_not_sent(tmp_path, raw, unsent):
    _, options = unsent
    (index,) = (tmp_path / "staging").rglob("shard-000001.parquet")
    content = index.read_bytes()
    index.write_bytes(content[:90] + bytes([content[90] ^ 4]) + content[91:])
    with pytest.raises(PackError, match=r"shard-000001.parquet is damaged.*remove"):
        pack_dataset(raw, "s3://bucket/x", **options)


def test_a_damaged_copy_of_the_index_is_fetched_again(tmp_path, raw, url, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pack_dataset(raw, url, shard_size=2)
    expected = list(make_loader(url, batch_size=2, image=None))
    (index,) = (tmp_path / "cache").rglob("shard-000001.parquet")
    content = index.read_bytes()
    index.write_bytes(content[:90])
    shutil.rmtree(index.parent / "columns")
    assert_same_batches(make_loader(url, batch_size=2, image=None), expected)
    assert index.read_bytes() == content
    assert f"{index} is damaged; fetching it again" in caplog.text
