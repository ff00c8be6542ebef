"""What servers say and do, to a client that reads ranges."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from datapipe.remote.http import HttpRanges, HttpStatusError

DATA = bytes(range(256)) * 64

Answer = Callable[[int, int], bytes | None]
"""What is sent for bytes start to stop; None closes the connection."""


def partial(start: int, stop: int, *fields: str, version: str = "1.1") -> bytes:
    lines = [f"HTTP/{version} 206 Partial Content", f"Content-Length: {stop - start}", *fields]
    return "\r\n".join([*lines, "\r\n"]).encode() + DATA[start:stop]


def run(answer: Answer, read: Callable[[HttpRanges, str], Any], split: int = 1 << 20) -> Any:
    """Read from a server; what came, and how often it was connected to."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                span = re.search(rb"Range: bytes=(\d+)-(\d+)", head)
                assert span is not None
                sent = answer(int(span[1]), int(span[2]) + 1)
                if sent is None:
                    break
                for at in range(0, len(sent), split):
                    writer.write(sent[at : at + split])
                    await writer.drain()
                    if split < len(sent):
                        await asyncio.sleep(0)
                if b"close" in sent.partition(b"\r\n\r\n")[0]:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            http = HttpRanges()
            try:
                return await read(http, f"http://127.0.0.1:{port}/a folder/x.tar")
            finally:
                http.close()  # a server ends with its last connection, from Python 3.12 on

    return asyncio.run(main()), connections


@pytest.mark.parametrize("split", [1, 7, 100, 1 << 20])
def test_a_range_is_read_however_it_comes(split: int) -> None:
    async def read(http: HttpRanges, url: str) -> list[Any]:
        return [await http.read(url, at, at + 300) for at in (0, 1000, 5000)]

    parts, connections = run(partial, read, split)
    assert parts == [DATA[at : at + 300] for at in (0, 1000, 5000)]
    assert connections == 1


def test_many_ranges_come_at_a_time() -> None:
    async def read(http: HttpRanges, url: str) -> list[Any]:
        return await asyncio.gather(*(http.read(url, at, at + 9) for at in range(50)))

    parts, connections = run(partial, read)
    assert parts == [DATA[at : at + 9] for at in range(50)]
    assert connections <= 50


@pytest.mark.parametrize(
    "answer",
    [
        lambda start, stop: partial(start, stop, "Connection: close"),
        lambda start, stop: partial(start, stop, version="1.0"),
    ],
)
def test_a_connection_that_is_closed_is_not_used_again(answer: Answer) -> None:
    async def read(http: HttpRanges, url: str) -> list[Any]:
        return [await http.read(url, at, at + 9) for at in (0, 1, 2)]

    parts, connections = run(answer, read)
    assert parts == [DATA[at : at + 9] for at in (0, 1, 2)]
    assert connections == 3


def test_a_connection_that_was_idle_for_too_long_is_replaced() -> None:
    asked: list[int] = []

    def answer(start: int, stop: int) -> bytes | None:
        asked.append(start)
        return None if len(asked) == 2 else partial(start, stop)  # the server hangs up

    async def read(http: HttpRanges, url: str) -> list[Any]:
        return [await http.read(url, at, at + 9) for at in (0, 1)]

    parts, connections = run(answer, read)
    assert parts == [DATA[0:9], DATA[1:10]]
    assert (asked, connections) == ([0, 1, 1], 2)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 9\r\nContent-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_not_usual_is_left_to_the_other_client(sent: bytes) -> None:
    async def read(http: HttpRanges, url: str) -> list[Any]:
        return [await http.read(url, 0, 9), await http.read(url, 0, 9)]

    parts, connections = run(lambda start, stop: sent, read)
    assert parts == [None, None]
    assert connections == 1  # and is not asked again


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", FileNotFoundError),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwait", HttpStatusError),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ConnectionError),
        (b"x" * (80 << 10), ConnectionError),
        (partial(0, 9) + b"more", ConnectionError),
    ],
)
def test_errors_are_told_apart(sent: bytes, error: type[Exception]) -> None:
    async def read(http: HttpRanges, url: str) -> Any:
        with pytest.raises(error) as caught:
            await http.read(url, 0, 9)
        return caught.value

    raised, _ = run(lambda start, stop: sent, read)
    if error is HttpStatusError:
        assert (raised.status, raised.message) == (503, "Busy")


def test_an_answer_that_is_cut_off_says_how_much_came() -> None:
    def answer(start: int, stop: int) -> bytes:
        return partial(start, stop, "Connection: close")[:-100]

    async def read(http: HttpRanges, url: str) -> None:
        with pytest.raises(ConnectionError, match=r"^200 of 300 bytes came"):
            await http.read(url, 0, 300)

    run(answer, read)


def test_giving_up_leaves_no_half_read_connection_behind() -> None:
    async def read(http: HttpRanges, url: str) -> Any:
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.2):
                await http.read(url, 0, 300)
        return await http.read(url, 5, 9)

    def answer(start: int, stop: int) -> bytes:
        whole = partial(start, stop)
        return whole[:-1] if stop == 300 else whole  # the last byte never comes

    part, connections = run(answer, read)
    assert part == DATA[5:9]
    assert connections == 2


@pytest.mark.parametrize("url", ["http://host/x?token=1", "http://user@host/x", "http:///x"])
def test_urls_that_need_more_are_left_to_the_other_client(url: str) -> None:
    assert asyncio.run(HttpRanges().read(url, 0, 9)) is None
