"""A dataset behind nginx, the server that most people have."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.testing import assert_same_batches
from tests.ports import free_port
from tests.waiting import PATIENCE

pytest.importorskip("aiohttp")
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

_CONFIG = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 7;
    server {{
        listen 127.0.0.1:{port};
        location /shards/ {{ alias {shards}/; }}
        location /moved/ {{ return 302 /shards$request_uri; }}
        location /shards/moved/ {{ alias {shards}/; }}
    }}
}}
"""


@pytest.fixture
def nginx(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards = tmp_path / "served"
    shutil.copytree(packed, shards)
    port = free_port()
    config = tmp_path / "nginx.conf"
    # Started by root it would work as somebody else, who may not look into the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(user + _CONFIG.format(folder=tmp_path, port=port, shards=shards))
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", str(config), "-p", str(tmp_path)])
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "error.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("path", ["shards", "moved"])
def test_batches_are_those_from_here(make, nginx, path):
    """Also where connections end after a few requests, and behind a redirection."""
    options: dict[str, Any] = {"batch_size": 4, "image": ImageSpec(size=32), "num_workers": 2}
    loader = datapipe.make_loader(f"{nginx}/{path}", **options)
    assert_same_batches(loader, make(**options))
    loader.close()


def test_ranges_alone_are_asked_for(nginx, tmp_path):
    loader = datapipe.make_loader(f"{nginx}/shards", batch_size=4, image=ImageSpec(size=32))
    list(loader)
    loader.close()
    lines = (tmp_path / "access.log").read_text().splitlines()
    answers = [line.split('"')[2].split()[0] for line in lines if ".tar" in line]
    assert answers
    assert set(answers) == {"206"}
