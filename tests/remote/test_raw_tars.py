"""Tars behind a URL are packed while others are still on their way, with the same result."""

import json
import shutil
import signal
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import StoreError
from tests.waiting import PATIENCE


@pytest.fixture
def tars(tmp_path, make_tar, jpeg):
    """A folder of four tars of four samples, with an index beside each."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(4):
        members = [
            (f"{number}{sample}.{ext}", data)
            for sample in range(4)
            for ext, data in (("jpg", jpeg(4 * number + sample)), ("txt", b"A cat."))
        ]
        make_tar(folder / f"{number:05}.tar", members)
        (folder / f"{number:05}.idx").write_text("0 512\n")
    (folder / "README.md").write_text("Cats.")
    return folder


def send_after(proxy, name, other):
    """Hold a tar back until another has arrived whole; return both as they are sent."""
    begun, whole, sent = threading.Event(), threading.Event(), list[str]()

    def hold(number, request):
        if request.key.endswith(other):
            if request.span:
                begun.set()
            elif begun.is_set() and not whole.is_set():  # its version is compared
                sent.append(other)
                whole.set()
        elif request.span and request.key.endswith(name):
            assert whole.wait(PATIENCE)
            sent.append(name)

    proxy.fault = hold
    return sent


@pytest.mark.parametrize("how", ["folder", "list", "dry run first"])
def test_tars_in_a_bad_order_are_packed_in_theirs(
    put, pack, proxy, tars, local, contents, tmp_path, how
):
    url = put(tars)
    sent = send_after(proxy, "1.tar", "2.tar")
    raw = f"{url}/{{00000..00003}}.tar" if how == "list" else url
    if how == "dry run first":
        assert pack(raw, dry_run=True).samples == 16
    report = pack(raw)
    assert (report.samples, report.rejected) == (16, 0)
    assert sent == ["2.tar", "1.tar"]
    expected = local(f"{tars}/{{00000..00003}}.tar" if how == "list" else tars)
    assert contents(tmp_path / "out") == expected
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.campaign)])
def test_tars_by_a_list_from_store_to_store(
    put, pack, client, bucket, tars, local, tmp_path, engine
):
    for part in "ab":
        shutil.copytree(tars, tmp_path / "parts" / part)
    url = put(tmp_path / "parts")
    listed = "{b,a}/{00000..00001}.tar"
    report = pack(f"{url}/{listed}", f"s3://{bucket}/out", engine=engine)
    assert report.samples == 16
    expected = local(f"{tmp_path}/parts/{listed}")
    there = client.cat(client.find(f"{bucket}/out"))
    assert {key.removeprefix(f"{bucket}/out/"): value for key, value in there.items()} == {
        name: content for name, content in expected.items() if not name.startswith("columns/")
    }


def test_shards_are_written_before_the_last_tar_arrives(
    put, pack, proxy, tars, make_tar, jpeg, bucket
):
    image = jpeg(1)
    for number in range(3):
        make_tar(tars / f"{number:05}.tar", [(f"{number}-{n}.jpg", image) for n in range(400)])
    written = threading.Event()

    def hold(number, request):
        if request.method == "PUT":
            written.set()
        if request.span and request.key.endswith("00003.tar"):
            assert written.wait(PATIENCE)

    url = put(tars)
    proxy.fault = hold
    assert pack(url, f"s3://{bucket}/out", shard_size=100).samples == 1204


@pytest.mark.parametrize("left", ["as it was", "empty", "zeros"])
def test_the_place_of_a_tar_is_never_taken_for_it(
    put, pack, proxy, tars, local, contents, tmp_path, left
):
    url = put(tars)
    proxy.fail("expired", "GET", "00002.tar")
    with pytest.raises(StoreError, match=rf"{url}/00002.tar, .* expired"):
        pack(url)
    assert not (tmp_path / "out" / "dataset.json").exists()
    (place,) = (tmp_path / "staging").glob("*/raw/00002.tar")
    assert place.stat().st_size == (tars / "00002.tar").stat().st_size
    if left != "as it was":  # a run that is killed, or a machine that crashes, leaves others
        place.write_bytes(b"" if left == "empty" else bytes(place.stat().st_size))
    proxy.fault = lambda number, request: None
    proxy.asked.clear()
    pack(url)
    assert not [each for each in proxy.asked if each.span and each.key.endswith("00000.tar")]
    assert contents(tmp_path / "out") == local(tars)


@pytest.mark.parametrize("changed", [0, 2])
def test_a_tar_that_changes_meanwhile_is_named(
    put, pack, proxy, tars, jpeg, client, bucket, changed, tmp_path
):
    url = put(tars)
    done = []

    def replace(number, request):
        if request.span and request.key.endswith("00002.tar") and not done:
            path = f"{bucket}/tars/{changed:05}.tar"
            done.append(client.pipe(path, (tars / "00003.tar").read_bytes()))

    proxy.fault = replace
    with pytest.raises(
        StoreError, match=f"{url} changed while it was downloaded; pack it into a new OUT"
    ):
        pack(url)
    assert not (tmp_path / "out" / "dataset.json").exists()
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    # What was sent in the place of the third tar is not packed, nor is what stands behind it.
    assert changed == 0 or not any(jpeg(12) in content for content in written)


def test_an_interrupt_ends_the_downloads(put, pack, proxy, tars):
    url = put(tars)
    interrupts = iter([signal.SIGINT])  # a second one would end the wait for threads

    def fault(number, request):
        if not (request.span and request.key.endswith("00001.tar")):
            return None
        for each in interrupts:
            signal.pthread_kill(threading.main_thread().ident, each)
        return "stuck"

    proxy.fault = fault
    with pytest.raises(KeyboardInterrupt):
        pack(url)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("datapipe-fetch")]
    assert not proxy.release.is_set()


def test_tables_of_img2dataset_arrive_before_the_tars(
    put, pack, proxy, tars, local, contents, tmp_path
):
    for number in range(4):
        (tars / f"{number:05}.idx").unlink()
        (tars / f"{number:05}_stats.json").write_text(json.dumps({"count": 5}))
        keys = [f"{number}{sample}" for sample in range(5)]
        status = ["success"] * 4 + ["failed_to_download"]
        table = {"key": keys, "url": [f"http://host/{key}" for key in keys], "status": status}
        pq.write_table(pa.table(table), tars / f"{number:05}.parquet")
    url = put(tars)
    send_after(proxy, "1.tar", "3.tar")
    report = pack(url, max_rejects="50%")
    assert (report.samples, report.rejected) == (16, 4)
    tables = [n for n, each in enumerate(proxy.asked) if each.span and "parquet" in each.key]
    later = [n for n, each in enumerate(proxy.asked) if each.span and "1.tar" in each.key]
    assert max(tables) < min(later)
    assert contents(tmp_path / "out") == local(tars, max_rejects="50%")


def test_tars_that_are_unpacked_beside_their_files_arrive_first(
    put, pack, tars, local, contents, tmp_path
):
    for tar in tars.glob("*.tar"):
        shutil.unpack_archive(tar, tars)
    url = put(tars)
    report = pack(url)
    assert report.samples == 16
    assert contents(tmp_path / "out") == local(tars)
