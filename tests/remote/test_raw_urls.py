"""Raw data behind URLs is packed as the same data in a folder is."""

import pytest

from datapipe import PackError, StoreError, pack_dataset

from .server import serving


@pytest.fixture
def folder(tmp_path, make_folder):
    return make_folder(tmp_path / "raw", 9)


def test_a_folder_of_images_is_packed_whatever_faults_there_are(
    put, pack, proxy, folder, contents, local, tmp_path
):
    url = put(folder)
    proxy.fault = lambda number, request: {1: "503", 2: "cut"}.get(number)
    pack(url)
    assert contents(tmp_path / "out") == local(folder)
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_file_of_records_over_http(pack, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "texts.jsonl").write_text(
        "".join(f'{{"question": "What is {n}?", "answer": "A number."}}\n' for n in range(4))
    )
    with serving(tmp_path / "web") as server:
        report = pack(f"{server.url}/texts.jsonl", storage_options=None)
    assert report.samples == 4


def test_a_download_that_broke_goes_on_where_it_was(
    put, pack, proxy, folder, tmp_path, contents, local
):
    url = put(folder)
    images = sorted(path.name for path in folder.rglob("*.jpg"))
    proxy.fail("expired", "GET", images[4])
    with pytest.raises(StoreError, match=rf"{url}/.*{images[4]}, .* expired .* renew"):
        pack(url)
    have = {path.name for path in (tmp_path / "staging").glob("*/raw/**/*.jpg")}
    assert images[4] not in have
    proxy.fault = lambda number, request: None
    proxy.asked.clear()
    pack(url)
    again = {each.key.rpartition("/")[2] for each in proxy.asked if each.span}
    assert not again & have
    assert contents(tmp_path / "out") == local(folder)


def test_a_file_that_was_replaced_since_is_downloaded_again(
    put, pack, folder, tmp_path, contents, local, jpeg
):
    url = put(folder)
    pack(url, dry_run=True)
    assert len(list((tmp_path / "staging").rglob("*.jpg"))) == 9
    first = min(folder.rglob("*.jpg"))
    first.write_bytes(jpeg(77))
    put(folder)
    pack(url)
    assert contents(tmp_path / "out") == local(folder)


def test_a_file_that_changes_meanwhile_is_named(put, pack, proxy, folder, jpeg, client):
    url = put(folder)
    path = f"{url}/{min(folder.rglob('*.jpg')).relative_to(folder)}"

    def replace(number, request):
        if request.span and not done:
            done.append(client.pipe(path, jpeg(78)))

    done = []
    proxy.fault = replace
    with pytest.raises(
        StoreError, match=f"{url} changed while it was downloaded; run the command again"
    ):
        pack(url)


def test_a_disk_that_is_too_small_is_named_before_the_download(put, pack, proxy, folder):
    url = put(folder)
    proxy.fault = lambda number, request: "huge" if request.key == "" else None
    with pytest.raises(PackError, match=r"files of raw data, [\d.]+ TB are needed, .* are free"):
        pack(url)
    assert not [each for each in proxy.asked if each.span]


def test_what_cannot_be_downloaded_is_named(pack, bucket):
    with pytest.raises(StoreError, match=f"s3://{bucket}/nowhere/?: there is no such file"):
        pack(f"s3://{bucket}/nowhere")
    with pytest.raises(PackError, match="several hosts or buckets"):
        pack("s3://{a,b}/0.tar")
    with pytest.raises(PackError, match="OUT \\(`out`\\) is missing"):
        pack_dataset("http://127.0.0.1:9/raw.tar")


def test_errors_about_the_data_name_the_url(put, pack, tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "x.bin").write_bytes(b"x")
    url = put(tmp_path / "odd")
    with pytest.raises(PackError, match=f"{url}, downloaded to .*/raw holds one file"):
        pack(url)
