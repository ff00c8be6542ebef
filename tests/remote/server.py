"""An HTTP server of files with ranges, and with the faults that servers have."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE

Fault = Callable[[int, str], str | None]
"""Of the number of the request and the name of its file: what goes wrong, if anything."""


@dataclass
class Server:
    """A running server.

    Attributes:
        url: of the folder that it serves.
        asked: (name, Range header) of every request.
        fault: "503", "cut", "slow", "whole", "unsized", "404" or "hang" for a request; see `Fault`.
        most: requests at work at once, so far.
    """

    url: str
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    fault: Fault = lambda number, name: None
    most: int = 0


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve a folder on a free port of this machine."""
    lock, working, released = threading.Lock(), [0], threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            with lock:
                server.asked.append((name, self.headers.get("Range")))
                number = len(server.asked)
                working[0] += 1
                server.most = max(server.most, working[0])
            try:
                self.answer(name, server.fault(number, name))
            finally:
                with lock:
                    working[0] -= 1

        def answer(self, name: str, fault: str | None) -> None:
            path = folder / name
            if fault == "503":
                return self.send(503, b"come back later")
            if fault == "404" or not path.is_file():
                return self.send(404, b"not here")
            data = path.read_bytes()
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if fault == "unsized":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = True
                return None
            if span is None or fault == "whole":
                return self.send(200, data)
            part = data[int(span[1]) : int(span[2]) + 1]
            if fault == "hang":
                released.wait(PATIENCE)
            if fault == "cut":
                self.start(206, len(part))
                self.wfile.write(part[: len(part) // 2])
                self.close_connection = True
                self.connection.close()
                return None
            if fault == "slow":
                self.start(206, len(part))
                for start in range(0, len(part), 1 + len(part) // 8):
                    self.wfile.write(part[start : start + 1 + len(part) // 8])
                    time.sleep(0.01)
                return None
            return self.send(206, part)

        def send(self, status: int, body: bytes) -> None:
            self.start(status, len(body))
            self.wfile.write(body)

        def start(self, status: int, size: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.end_headers()

    with listening(Handler) as url:
        server = Server(url=url)
        try:
            yield server
        finally:
            released.set()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of 5, the default, connections beyond wait a second for another try


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on a free port of this machine, each in a thread; the URL."""
    with _Listener(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


class QuietHandler(BaseHTTPRequestHandler):
    """One that says nothing, also when a client leaves."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # the client left, or we did
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass
