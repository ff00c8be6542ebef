"""A real S3 server over a socket, behind a proxy with the faults of networks and stores."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import datapipe
from datapipe import ImageSpec, PlanError, StoreError, pack_dataset
from datapipe.cli.command import app
from datapipe.remote.folder import RemoteFolder, RemoteOptions
from datapipe.remote.retry import RetryPolicy
from datapipe.remote.upload import RemoteTarget
from datapipe.testing import assert_same_batches

from .faulty_proxy import Proxy, Request

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

QUICK = RetryPolicy(first_pause=0.001, longest_pause=0.002)
DATA = random.Random(5).randbytes(100_000)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, make_folder: Any) -> Path:
    folder: Path = make_folder(tmp_path_factory.mktemp("raw"), 9)
    return folder


@pytest.fixture
def pack(proxy: Proxy, bucket: str, raw: Path, tmp_path: Path) -> Callable[..., Any]:
    def pack(**options: Any) -> Any:
        given = {"shard_size": 3, "staging": tmp_path / "staging", **options}
        url = f"s3://{bucket}/x/shards"
        return pack_dataset(raw, url, storage_options=proxy.storage_options, **given)

    return pack


@pytest.fixture
def folder(proxy: Proxy, bucket: str, client: Any) -> Callable[..., RemoteFolder]:
    client.pipe(f"{bucket}/x/a.tar", DATA)

    def open_folder(**policy: Any) -> RemoteFolder:
        retry = RetryPolicy(**{"first_pause": 0.001, **policy})
        options = RemoteOptions(retry=retry, storage_options=proxy.storage_options)
        return RemoteFolder(f"s3://{bucket}/x", options)

    return open_folder


def load(where: str, **options: Any) -> datapipe.Loader:
    return datapipe.make_loader(where, batch_size=2, image=ImageSpec(size=32), **options)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


@pytest.mark.campaign
def test_packing_and_loading_survive_faults(
    pack: Any, proxy: Proxy, bucket: str, raw: Path, tmp_path: Path
) -> None:
    faults = random.Random(3)

    def fault(number: int, request: Request) -> str | None:
        # The third try of each request is answered, or the test would be of luck.
        return faults.choice(["503", "reset", "cut", "slow"]) if number <= 2 else None

    proxy.fault = fault
    pack()
    pack_dataset(raw, tmp_path / "local", shard_size=3)
    remote = datapipe.RemoteSpec(storage_options=proxy.storage_options)
    there = load(f"s3://{bucket}/x/shards", remote=remote)
    assert_same_batches(there, load(str(tmp_path / "local")))
    assert there.dataset.folder.traffic.retries > 0  # type: ignore[union-attr]


def test_tries_at_a_store_that_is_overloaded_are_bounded(folder: Any, proxy: Proxy) -> None:
    proxy.fault = lambda number, request: "503"
    with pytest.raises(StoreError, match=r"x/a.tar, bytes 5 to 9: HTTP 503 SlowDown .*4 of 4"):
        folder(attempts=4).begin("a.tar", 5, 9).result()
    assert proxy.count("GET", "x/a.tar") == 4  # the client adds none of its own


@pytest.mark.parametrize("fault", ["reset", "cut", "slow"])
def test_reads_survive(folder: Any, proxy: Proxy, fault: str) -> None:
    proxy.fault = lambda number, request: fault if number == 1 else None
    assert folder().begin("a.tar", 0, len(DATA)).result() == DATA
    assert len(proxy.asked) == (1 if fault == "slow" else 2)


def test_a_read_that_is_stuck_is_overtaken_by_another(folder: Any, proxy: Proxy) -> None:
    opened = folder(hedge_share=1.0)
    for start in range(20):
        opened.begin("a.tar", start, start + 1).result()
    before = opened.traffic.hedges
    proxy.fault = lambda number, request: "stuck" if number == 1 else None
    assert opened.begin("a.tar", 100, 200).result() == DATA[100:200]
    assert proxy.stuck == 1
    assert not proxy.release.is_set()
    assert (opened.traffic.hedges - before, opened.traffic.retries) == (1, 0)


def test_few_reads_are_begun_a_second_time(folder: Any, proxy: Proxy) -> None:
    opened = folder(hedge_share=0.1)
    for start in range(20):
        opened.begin("a.tar", start, start + 1).result()
    proxy.fault = lambda number, request: "stuck"
    reads = [opened.begin("a.tar", start, start + 1) for start in range(100, 110)]
    wait_for(lambda: proxy.stuck >= 12 and opened.traffic.hedges >= 3)  # the first, and 10 %
    proxy.release.set()
    assert [read.result() for read in reads] == [DATA[n : n + 1] for n in range(100, 110)]
    assert opened.traffic.hedges <= 1 + 0.1 * 30


def test_no_read_is_begun_again_before_it_is_known_what_reads_take(
    folder: Any, proxy: Proxy
) -> None:
    opened = folder()
    proxy.fault = lambda number, request: "stuck"
    reads = [opened.begin("a.tar", start, start + 1) for start in range(5)]
    wait_for(lambda: proxy.stuck == 5)
    proxy.release.set()
    assert b"".join(read.result() for read in reads) == DATA[:5]
    assert (opened.traffic.hedges, len(proxy.asked)) == (0, 5)


def test_expired_credentials_are_named_with_the_remedy(
    folder: Any, pack: Any, proxy: Proxy, bucket: str
) -> None:
    proxy.fault = lambda number, request: "expired"
    renew = "expired.*renew"
    with pytest.raises(StoreError, match=rf"s3://{bucket}/x/a.tar, .*{renew}.*attempt 1 of 6"):
        folder().begin("a.tar", 0, 5).result()
    with pytest.raises(StoreError, match=rf"s3://{bucket}/x/shards/dataset.json: .*{renew}"):
        pack()
    assert max(Counter(proxy.asked).values()) == 1


def test_a_token_that_expires_while_packing_costs_nothing_that_was_sent(
    pack: Any, proxy: Proxy, bucket: str, client: Any
) -> None:
    proxy.fault = lambda number, request: (
        "expired" if request.method == "PUT" and "000002" in request.key else None
    )
    with pytest.raises(StoreError, match=r"000002.tar: the credentials have expired .* renew"):
        pack()
    proxy.fault = lambda number, request: None
    proxy.asked.clear()
    pack()
    assert proxy.count("PUT", "x/shards/shard-000002.tar") == 1
    assert client.exists(f"{bucket}/x/shards/dataset.json")


def test_parts_of_killed_uploads_are_removed_and_those_of_others_stay(
    pack: Any, bucket: str, client: Any
) -> None:
    for key in ("x/shards/shard-000001.tar", "x/shards/notes.bin", "y/shard-000001.tar"):
        begun = client.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        part = {"UploadId": begun["UploadId"], "PartNumber": 1, "Body": b"half"}
        client.call_s3("upload_part", Bucket=bucket, Key=key, **part)
    pack()
    left = {upload["Key"] for upload in client.list_multipart_uploads(bucket)}
    assert left == {"x/shards/notes.bin", "y/shard-000001.tar"}


def test_uploads_that_cannot_be_listed_are_left_with_a_warning(
    pack: Any, proxy: Proxy, bucket: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fault = lambda number, request: (
        "expired" if (request.method, request.key) == ("GET", "") else None
    )
    target = RemoteTarget(f"s3://{bucket}/x", RemoteOptions(storage_options=proxy.storage_options))
    target.begin_task(target.abort_uploads({"a.tar"})).result()
    assert "lifecycle rule" in caplog.text


def test_parts_are_equal_and_a_part_that_fails_is_sent_again_alone(
    proxy: Proxy, bucket: str, client: Any, tmp_path: Path
) -> None:
    data = random.Random(3).randbytes(17 << 20)
    (tmp_path / "a.tar").write_bytes(data)
    proxy.fault = lambda number, request: "503" if request.part == 2 and number < 3 else None
    options = RemoteOptions(retry=QUICK, storage_options=proxy.storage_options)
    target = RemoteTarget(f"s3://{bucket}/x", options)
    put = target._filesystem._put_file
    target._filesystem._put_file = lambda *args: put(*args, chunksize=5 << 20)
    target.begin_task(target.put(tmp_path / "a.tar", "a.tar")).result()
    assert client.cat(f"{bucket}/x/a.tar") == data
    sent = Counter((request.part, request.size) for request in proxy.asked if request.part)
    # R2 and others refuse parts of several sizes, but for the last.
    assert sent == {(1, 5 << 20): 1, (2, 5 << 20): 3, (3, 5 << 20): 1, (4, 2 << 20): 1}


def test_secrets_are_in_no_output_and_no_file(
    proxy: Proxy,
    bucket: str,
    raw: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("fsspec.config.conf", {})
    monkeypatch.setenv("FSSPEC_S3", "{}")
    monkeypatch.setenv("FSSPEC_S3_KEY", "another")  # the option goes before
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "datapipe")
    secrets = {"secret": "planted-secret-key", "token": "planted-session-token"}
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"key": "planted-access-key", **secrets}))
    url = f"s3://{bucket}/x/shards"
    said: list[str] = []

    def run(*arguments: str, code: int = 0) -> str:
        storage = ["--storage-options", str(options)]
        storage += ["--storage-options", f"endpoint_url={proxy.url}"]
        done = CliRunner().invoke(app, [*arguments, *storage])
        assert done.exit_code == code, done.output
        said.extend((done.output, str(done.exception)))
        return done.output

    def expired(number: int, request: Request) -> str | None:
        return "expired" if request.method == "PUT" and "000002" in request.key else None

    packing = ("pack", str(raw), url, "--shard-size", "3", "--staging", str(tmp_path / "staging"))
    proxy.fault = expired
    assert "expired" in run(*packing, code=1)
    proxy.fault = lambda number, request: "503" if number == 1 else None
    run(*packing)
    run("plan", url, "--batch-size", "2", "--json")
    proxy.fault = lambda number, request: "expired"
    assert "renew" in run("inspect", url, code=1)
    assert any("again in" in message for message in caplog.messages)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != options]
    said += [path.read_text("latin-1") for path in files] + [caplog.text]
    assert len(files) > 5
    assert "planted" in os.environ["FSSPEC_S3"]  # from where processes take it
    assert not [text for text in said if "planted" in text]


def test_what_a_server_repeats_of_a_secret_is_not_shown(
    folder: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = folder()

    async def deny(*_: Any, **__: Any) -> bytes:
        raise PermissionError(f"the key planted-secret-key of someone at {proxy.url} is wrong")

    monkeypatch.setattr(opened._filesystem, "_cat_file", deny)
    with pytest.raises(StoreError, match=rf"the key \*\*\* of \*\*\* at {proxy.url} is"):
        opened.begin("a.tar", 0, 5).result()


def test_options_show_no_secret() -> None:
    secret = {"secret": "planted"}
    assert "planted" not in repr(datapipe.RemoteSpec(storage_options=secret))
    assert "planted" not in repr(RemoteOptions(storage_options=secret))


def test_a_url_with_a_password_is_refused_without_it() -> None:
    with pytest.raises(PlanError, match="https://host/x: a password") as refused:
        RemoteFolder("https://someone:planted@host/x")
    assert "planted" not in str(refused.value)


def test_a_variable_of_fsspec_that_cannot_be_read_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FSSPEC_S3", "planted")
    done = CliRunner().invoke(app, ["inspect", "s3://bucket/x", "--storage-options", "anon=true"])
    assert "FSSPEC_S3: its value cannot be read; give key=value" in done.output
    assert "planted" not in done.output


@pytest.mark.parametrize("given", ["planted", '{"planted"', "planted.json"])
def test_storage_options_that_cannot_be_read_are_refused_without_showing_them(given: str) -> None:
    done = CliRunner().invoke(app, ["inspect", "s3://bucket/x", "--storage-options", given])
    assert "cannot be read; give key=value" in done.output + str(done.exception)
    assert "planted" not in done.output + str(done.exception)


def test_storage_options_without_a_url_are_refused() -> None:
    done = CliRunner().invoke(app, ["inspect", "shards", "--storage-options", "anon=true"])
    assert "no argument is a URL" in done.output + str(done.exception)
