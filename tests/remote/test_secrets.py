"""Credentials are found where clients find them, and shown nowhere."""

import json
import os

import fsspec
import pytest

import datapipe
from datapipe import PlanError, StoreError
from datapipe.remote.folder import RemoteFolder, RemoteOptions

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")


@pytest.fixture
def packing(bucket, tmp_path, make_folder):
    """A command that packs nine samples to the store."""
    command = ["pack", str(make_folder(tmp_path / "raw", 9)), f"s3://{bucket}/x/shards"]
    return [*command, "--shard-size", "3", "--staging", str(tmp_path / "staging")]


def test_the_command_finds_endpoint_and_credentials_by_itself(run, packing, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    done = run(*packing)
    assert done.exit_code == 0, done.output
    assert f"Packed {packing[2]}" in done.output
    assert proxy.sent()[-1] == "x/shards/dataset.json"


def test_secrets_are_in_no_output_and_no_file(run, packing, proxy, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(fsspec.config.conf, "s3", {})
    monkeypatch.setenv("FSSPEC_S3", "{}")
    monkeypatch.setenv("FSSPEC_S3_KEY", "another")  # the option goes before
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "datapipe")
    secrets = {"secret": "planted-secret-key", "token": "planted-session-token"}
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"key": "planted-access-key", **secrets}))
    url = packing[2]
    said = []

    def told(*arguments, code=0):
        storage = ("--storage-options", options)
        done = run(*arguments, *storage, "--storage-options", f"endpoint_url={proxy.url}")
        assert done.exit_code == code, done.output
        said.extend((done.output, str(done.exception)))
        return done.output

    proxy.fail("expired", "PUT", "000002")
    assert "expired" in told(*packing, code=1)
    proxy.fault = lambda number, request: "503" if number == 1 else None
    told(*packing)
    told("plan", url, "--batch-size", "2", "--json")
    proxy.fault = lambda number, request: "expired"
    assert "renew" in told("inspect", url, code=1)
    assert any("again in" in message for message in caplog.messages)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != options]
    said += [path.read_text("latin-1") for path in files] + [caplog.text]
    assert len(files) > 5
    assert "planted" in os.environ["FSSPEC_S3"]  # from where processes take it
    assert not [text for text in said if "planted" in text]


def test_what_a_server_repeats_of_a_secret_is_not_shown(proxy, bucket):
    proxy.fault = lambda number, request: "denied"
    options = RemoteOptions(storage_options=proxy.storage_options)
    folder = RemoteFolder(f"s3://{bucket}/x", options)
    with pytest.raises(StoreError, match=rf"the key \*\*\* of \*\*\* at {proxy.url} is"):
        folder.begin("a.tar", 0, 5).result()


def test_options_show_no_secret():
    secret = {"secret": "planted"}
    for make in (datapipe.RemoteSpec, RemoteOptions):
        assert "planted" not in repr(make(storage_options=secret))
    with pytest.raises(PlanError, match="https://host/x: a password") as refused:
        RemoteFolder("https://someone:planted@host/x")
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "given", "message"),
    [
        ("planted", "anon=true", "FSSPEC_S3: its value cannot be read; give key=value"),
        ("{}", "planted", "cannot be read; give key=value"),
        ("{}", '{"planted"', "cannot be read; give key=value"),
        ("{}", "planted.json", "cannot be read; give key=value"),
    ],
)
def test_storage_options_that_cannot_be_read_are_refused_without_showing_them(
    run, variable, given, message, monkeypatch
):
    monkeypatch.setenv("FSSPEC_S3", variable)
    done = run("inspect", "s3://bucket/x", "--storage-options", given)
    assert message in done.output + str(done.exception)
    assert "planted" not in done.output + str(done.exception)
