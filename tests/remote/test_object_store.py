"""Datasets packed to an object store and read from there, with the faults of networks and stores.

A real S3 server over a socket, behind a proxy with the faults.
"""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

import datapipe
from datapipe import ImageSpec, PackError, RemoteSpec, StoreError, pack_dataset
from datapipe.remote.folder import RemoteFolder, RemoteOptions
from datapipe.remote.retry import RetryPolicy
from datapipe.remote.upload import RemoteTarget
from datapipe.testing import assert_same_batches
from tests.waiting import PATIENCE, wait_until

DATA = random.Random(5).randbytes(100_000)


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder, make_broken):
    folder = make_folder(tmp_path_factory.mktemp("raw"), 9)
    make_broken(folder)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory, raw):
    out = tmp_path_factory.mktemp("local") / "out"
    pack_dataset(raw, out, shard_size=3, max_rejects=9, sidecars="wids")
    return out


@pytest.fixture
def url(bucket):
    return f"s3://{bucket}/x/shards"


@pytest.fixture
def pack(pack, raw, url):
    return lambda out=url, **options: pack(raw, out, max_rejects=9, **options)


@pytest.fixture
def there(client, bucket):
    """The files of the dataset in the bucket."""

    def there():
        names = client.find(f"{bucket}/x/shards")
        found = client.cat(names) if names else {}
        return {name.removeprefix(f"{bucket}/x/shards/"): found[name] for name in found}

    return there


@pytest.fixture
def published(local, contents):
    """The files that should be in the bucket, without sidecars."""
    files = contents(local).items()
    own = ("columns/", "shardindex.json")
    return {name: content for name, content in files if not name.startswith(own)}


@pytest.fixture
def folder(proxy, bucket, client):
    client.pipe(f"{bucket}/x/a.tar", DATA)

    def open_folder(**policy):
        retry = RetryPolicy(**{"first_pause": 0.001, **policy})
        options = RemoteOptions(retry=retry, storage_options=proxy.storage_options)
        return RemoteFolder(f"s3://{bucket}/x", options)

    return open_folder


@pytest.fixture
def target(proxy, bucket):
    options = RemoteOptions(storage_options=proxy.storage_options)
    return RemoteTarget(f"s3://{bucket}/x", options)


def load(where, proxy=None):
    remote = {"remote": RemoteSpec(storage_options=proxy.storage_options)} if proxy else {}
    return datapipe.make_loader(where, batch_size=2, image=ImageSpec(size=32), **remote)


def test_a_dataset_is_packed_there_once_and_read_from_there(
    pack, proxy, url, local, there, published, tmp_path
):
    assert pack().output == url
    assert there() == published
    assert proxy.sent()[-1] == "x/shards/dataset.json"
    assert list((tmp_path / "staging").iterdir()) == []
    before = proxy.sent()
    assert pack().finished_before
    assert proxy.sent() == before
    assert pack(sidecars="wids").finished_before
    assert proxy.sent()[len(before) :] == ["x/shards/shardindex.json"]
    assert there()["shardindex.json"] == (local / "shardindex.json").read_bytes()
    assert_same_batches(load(url, proxy), load(local))
    before = there()
    with pytest.raises(PackError, match=rf"{url} was started with other options \(shard_size"):
        pack(shard_size=4)
    assert there() == before


def test_packing_and_loading_survive_faults(pack, proxy, url, local):
    faults = random.Random(3)

    def fault(number, request):
        # The third try of each request is answered, or the test would be of luck.
        return faults.choice(["503", "reset", "cut", "slow"]) if number <= 2 else None

    proxy.fault = fault
    pack()
    there = load(url, proxy)
    assert_same_batches(there, load(local))
    assert there.dataset.folder.traffic.retries > 0


@pytest.mark.parametrize(
    ("fault", "message"), [("503", "attempt 6 of 6"), ("expired", "have expired .* renew")]
)
def test_what_cannot_be_sent_is_named(pack, proxy, there, published, fault, message):
    proxy.fail(fault, "PUT", "000002")
    quick = {"config_kwargs": {"retries": {"max_attempts": 0}}}  # or the client pauses as well
    with pytest.raises(StoreError, match=rf"s3://.*000002.tar: .*{message}"):
        pack(storage_options=proxy.storage_options | quick)
    assert "dataset.json" not in there()
    proxy.fault = lambda number, request: None
    proxy.asked.clear()
    pack()
    assert proxy.count("PUT", "x/shards/shard-000002.tar") == 1
    assert there() == published


def test_what_was_sent_is_sent_again_only_if_it_was_damaged_there(
    pack, proxy, client, bucket, there, published
):
    proxy.fail("expired", "PUT", "dataset.json")
    with pytest.raises(StoreError, match=r"dataset.json: .*attempt 1 of 6"):
        pack()
    proxy.fault = lambda number, request: None
    client.pipe(f"{bucket}/x/shards/shard-000001.tar", b"short")
    proxy.asked.clear()
    pack()
    tars = [key for key in proxy.sent() if key.endswith(".tar")]
    assert tars == ["x/shards/shard-000001.tar"]
    assert there() == published


@pytest.mark.campaign
@pytest.mark.parametrize("point", [2, 5, 8])
def test_a_pack_that_was_killed_goes_on(pack, proxy, raw, url, there, published, tmp_path, point):
    started = threading.Event()

    def kill(number, request):
        assert started.wait(PATIENCE)
        if len(proxy.sent()) == point:
            child.kill()
        return "503" if len(proxy.sent()) >= point else None

    proxy.fault = kill
    code = "import sys, json, datapipe; datapipe.pack_dataset(**json.loads(sys.argv[1]))"
    options = {"raw": str(raw), "out": url, "staging": str(tmp_path / "staging"), "shard_size": 3}
    options |= {"max_rejects": 9, "storage_options": proxy.storage_options}
    child = subprocess.Popen([sys.executable, "-c", code, json.dumps(options)])
    started.set()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert "dataset.json" not in there()
    proxy.fault = lambda number, request: None
    pack()
    assert there() == published
    assert list((tmp_path / "staging").iterdir()) == []


def test_other_files_and_missing_buckets_are_refused(pack, client, bucket, there):
    client.pipe(f"{bucket}/x/shards/notes.txt", b"mine")
    with pytest.raises(PackError, match=r"found: notes.txt"):
        pack()
    assert list(there()) == ["notes.txt"]
    with pytest.raises(StoreError, match="s3://nowhere/x: there is no such bucket"):
        pack("s3://nowhere/x")


def test_a_dry_run_writes_nothing(pack, proxy, url, tmp_path):
    report = pack(dry_run=True)
    assert (report.dry_run, report.samples, report.output) == (True, 9, url)
    assert not proxy.sent()
    assert not (tmp_path / "staging").exists()


def test_tries_at_a_store_that_is_overloaded_are_bounded(folder, proxy):
    proxy.fault = lambda number, request: "503"
    with pytest.raises(StoreError, match=r"x/a.tar, bytes 5 to 9: HTTP 503 SlowDown .*4 of 4"):
        folder(attempts=4).begin("a.tar", 5, 9).result()
    assert proxy.count("GET", "x/a.tar") == 4  # the client adds none of its own


def test_a_read_that_is_stuck_is_overtaken_by_another(folder, proxy):
    opened = folder(hedge_share=1.0)
    for start in range(20):
        opened.begin("a.tar", start, start + 1).result()
    before = opened.traffic.hedges
    proxy.fault = lambda number, request: "stuck" if number == 1 else None
    assert opened.begin("a.tar", 100, 200).result() == DATA[100:200]
    assert proxy.stuck == 1
    assert not proxy.release.is_set()
    assert (opened.traffic.hedges - before, opened.traffic.retries) == (1, 0)


def test_few_reads_are_begun_a_second_time(folder, proxy):
    opened = folder(hedge_share=0.1)
    for start in range(20):
        opened.begin("a.tar", start, start + 1).result()
    proxy.fault = lambda number, request: "stuck"
    reads = [opened.begin("a.tar", start, start + 1) for start in range(100, 110)]
    # The first, and 10 %: also of the reads before, where the machine was slow.
    wait_until(lambda: proxy.stuck >= 10 and opened.traffic.hedges >= 3)
    proxy.release.set()
    assert [read.result() for read in reads] == [DATA[n : n + 1] for n in range(100, 110)]
    assert opened.traffic.hedges <= 1 + 0.1 * 30


def test_no_read_is_begun_again_before_it_is_known_what_reads_take(folder, proxy):
    opened = folder()
    proxy.fault = lambda number, request: "stuck"
    reads = [opened.begin("a.tar", start, start + 1) for start in range(5)]
    wait_until(lambda: proxy.stuck == 5)
    proxy.release.set()
    assert b"".join(read.result() for read in reads) == DATA[:5]
    assert (opened.traffic.hedges, len(proxy.asked)) == (0, 5)


def test_expired_credentials_are_named_with_the_remedy_and_not_tried_again(
    folder, pack, proxy, bucket
):
    proxy.fault = lambda number, request: "expired"
    renew = "expired.*renew"
    with pytest.raises(StoreError, match=rf"s3://{bucket}/x/a.tar, .*{renew}.*attempt 1 of 6"):
        folder().begin("a.tar", 0, 5).result()
    with pytest.raises(StoreError, match=rf"s3://{bucket}/x/shards/dataset.json: .*{renew}"):
        pack()
    assert max(Counter(proxy.asked).values()) == 1


def test_parts_of_killed_uploads_are_removed_and_those_of_others_stay(pack, bucket, client):
    for key in ("x/shards/shard-000001.tar", "x/shards/notes.bin", "y/shard-000001.tar"):
        begun = client.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        part = {"UploadId": begun["UploadId"], "PartNumber": 1, "Body": b"half"}
        client.call_s3("upload_part", Bucket=bucket, Key=key, **part)
    pack()
    left = {upload["Key"] for upload in client.list_multipart_uploads(bucket)}
    assert left == {"x/shards/notes.bin", "y/shard-000001.tar"}


def test_uploads_that_cannot_be_listed_are_left_with_a_warning(proxy, target, caplog):
    proxy.fault = lambda number, request: (
        "expired" if (request.method, request.key) == ("GET", "") else None
    )
    target.begin_task(target.abort_uploads({"a.tar"})).result()
    assert "lifecycle rule" in caplog.text


def test_parts_are_equal_and_a_part_that_fails_is_sent_again_alone(
    proxy, bucket, client, target, tmp_path
):
    data = random.Random(3).randbytes(110 << 20)
    (tmp_path / "a.tar").write_bytes(data)
    proxy.fault = lambda number, request: "503" if request.part == 2 and number < 3 else None
    target.begin_task(target.put(tmp_path / "a.tar", "a.tar")).result()
    assert client.cat(f"{bucket}/x/a.tar") == data
    sent = Counter((request.part, request.size) for request in proxy.asked if request.part)
    # R2 and others refuse parts of several sizes, but for the last.
    assert sent == {(1, 50 << 20): 1, (2, 50 << 20): 3, (3, 10 << 20): 1}
    assert client.list_multipart_uploads(bucket) == []
