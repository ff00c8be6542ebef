"""A dataset behind nginx, the server that most people have."""

import os
import shutil
import socket
import subprocess
from contextlib import suppress

import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.testing import assert_same_batches
from tests.ports import free_port
from tests.waiting import PATIENCE, wait_until

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
def nginx(packed, tmp_path, monkeypatch):
    """Its URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards = shutil.copytree(packed, tmp_path / "served")
    port = free_port()
    config = tmp_path / "nginx.conf"
    # Started by root it would work as somebody else, who may not look into the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(user + _CONFIG.format(folder=tmp_path, port=port, shards=shards))
    process = subprocess.Popen([NGINX, "-c", str(config), "-p", str(tmp_path)])

    def listens():
        assert process.poll() is None, (tmp_path / "error.log").read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True

    try:
        wait_until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("path", ["shards", "moved"])
def test_batches_are_those_from_here_and_ranges_alone_are_asked_for(make, nginx, tmp_path, path):
    """Also where connections end after a few requests, and behind a redirection."""
    options = {"batch_size": 4, "image": ImageSpec(size=32), "num_workers": 2}
    with datapipe.make_loader(f"{nginx}/{path}", **options) as loader:
        assert_same_batches(loader, make(**options))
    lines = (tmp_path / "access.log").read_text().splitlines()
    answers = {line.split('"')[2].split()[0] for line in lines if ".tar" in line}
    assert answers - {"302"} == {"206"}
