"""A proxy in front of an S3 server, with the faults that networks and object stores have."""

import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.waiting import PATIENCE

from .server import QuietHandler, listening


class Request(NamedTuple):
    """A request; `span` is its Range header, and `part` the number of a part of an upload."""

    method: str
    key: str
    span: str | None
    part: int | None
    size: int


Fault = Callable[[int, Request], str | None]
"""Maps the number of times that a request came, and the request, to its fault, if any."""

_EXPIRED = "The provided token has expired."


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        url: of the API.
        asked: every request.
        fault: "503", "reset", "cut", "slow", "expired", "denied", "huge" or "stuck"; see
            `Fault`.
        release: set once stuck requests are to be answered.
        stuck: number of requests that are stuck.
    """

    url: str
    asked: list[Request] = field(default_factory=list)
    fault: Fault = lambda number, request: None
    release: threading.Event = field(default_factory=threading.Event)
    stuck: int = 0

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.url, "key": "someone", "secret": "planted-secret-key"}

    def fail(self, fault: str, method: str, key: str) -> None:
        """Give a fault to the requests of a method whose key holds a text."""
        self.fault = lambda number, request: (
            fault if request.method == method and key in request.key else None
        )

    def count(self, method: str, key: str) -> int:
        return sum(each.method == method and each.key == key for each in self.asked)

    def sent(self) -> list[str]:
        """Keys of the objects that were written, in the order of the requests."""
        return [each.key for each in self.asked if each.method == "PUT" and each.part is None]


@contextmanager
def s3_serving() -> Iterator[str]:
    """Run an S3 server; its host and port."""
    moto_server = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    yield "{}:{}".format(*running.get_host_and_port())
    running.stop()


@contextmanager
def bucket_serving(bucket: str) -> Iterator[tuple[Proxy, Any]]:
    """Run an S3 server with an empty bucket; a proxy in front of it, and a client behind it."""
    with s3_serving() as address, proxying(address) as proxy:
        client = client_of(address)
        if client.exists(bucket):  # servers of a process share their buckets
            client.rm(bucket, recursive=True)
        client.mkdir(bucket)
        yield proxy, client


def client_of(address: str) -> Any:
    """Return a client of the server itself, without faults."""
    s3fs = pytest.importorskip("s3fs")
    return s3fs.S3FileSystem(
        key="someone", secret="other", endpoint_url=f"http://{address}", use_listings_cache=False
    )


@contextmanager
def proxying(target: str) -> Iterator[Proxy]:
    """Pass requests on to the host and port `target`."""
    lock = threading.Lock()

    class Handler(QuietHandler):
        def do_any(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            size = int(self.headers.get("x-amz-decoded-content-length") or len(body))
            part = int(query["partNumber"][0]) if "partNumber" in query else None
            key, span = parts.path.lstrip("/").partition("/")[2], self.headers.get("Range")
            request = Request(self.command, key, span, part, size)
            with lock:
                number = proxy.asked.count(request) + 1
                proxy.asked.append(request)
            fault = proxy.fault(number, request)
            if fault == "503":
                return self.error(503, "SlowDown", "Please reduce your request rate.")
            if fault == "expired":
                return self.error(400, "ExpiredToken", _EXPIRED)
            if fault == "denied":
                said = f"the key planted-secret-key of someone at {proxy.url} is wrong"
                return self.error(403, "AccessDenied", said)
            if fault == "reset":
                return self.reset()
            if fault == "stuck":
                with lock:
                    proxy.stuck += 1
                proxy.release.wait(PATIENCE)
            server = HTTPConnection(target, timeout=PATIENCE)
            server.request(self.command, self.path, body, dict(self.headers))
            answer = server.getresponse()
            content = answer.read()
            server.close()
            if fault == "huge":
                content = re.sub(rb"<Size>\d+", b"<Size>%d" % 10**15, content)
            self.send_response(answer.status)
            own = ("transfer-encoding", "connection", "server", "date", "content-length")
            for name, value in answer.getheaders():
                if name.lower() not in own or (self.command == "HEAD" and name == "Content-Length"):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if fault == "cut":
                self.wfile.write(content[: len(content) // 2])
                return self.reset()
            step = 100 if fault == "slow" else max(1, len(content))
            for start in range(0, len(content), step):
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
            return None

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815  # as the base class calls them

        def error(self, status: int, code: str, message: str) -> None:
            body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    with listening(Handler) as url:
        proxy = Proxy(url=url)
        try:
            yield proxy
        finally:
            proxy.release.set()
