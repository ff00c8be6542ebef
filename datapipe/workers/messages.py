"""Messages between processes: a pickle, and the descriptors of files that it refers to."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

Reducers = Mapping[type, Callable[[Any], Any]]
"""Functions that reduce values of a type to what is pickled, as in `pickle.Pickler`'s
`dispatch_table`."""

_HEADER = struct.Struct("<QqHB")  # bytes of the content, number, descriptors, kind
_MOST_DESCRIPTORS = 253  # that the kernel sends at once

_received: ContextVar[list[int]] = ContextVar("received")


class Descriptor(NamedTuple):
    """Open file in a value that is sent to another process.

    The process that unpickles the value gets a descriptor of its own, and must close it. The sender
    keeps the file open until the message is sent.
    """

    number: int


class Message(NamedTuple):
    """Message of a kind about a job or worker with a number."""

    kind: int
    number: int
    content: bytes | bytearray = b""
    descriptors: tuple[int, ...] = ()

    def value(self) -> Any:
        """Return what the content is the pickle of."""
        token = _received.set(list(self.descriptors))
        try:
            return pickle.loads(self.content)
        finally:
            _received.reset(token)

    def discard(self) -> None:
        """Close the descriptors of a message that is not wanted."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def message(kind: int, number: int, value: object, reducers: Reducers | None = None) -> Message:
    """Return a message with the pickle of a value, or raise as `pickle.dumps` does."""
    buffer = io.BytesIO()
    descriptors = dump(pickle.Pickler(buffer, protocol=5), value, reducers or {})
    return Message(kind, number, buffer.getvalue(), descriptors)


def dump(pickler: pickle.Pickler, value: object, reducers: Reducers) -> tuple[int, ...]:
    """Pickle a value that may have descriptors; return these."""
    descriptors: list[int] = []

    def reduce(descriptor: Descriptor) -> tuple[object, ...]:
        descriptors.append(descriptor.number)
        return _duplicate, (len(descriptors) - 1,)

    table: dict[type, Callable[[Any], Any]] = {**copyreg.dispatch_table, **reducers}
    pickler.dispatch_table = table | {Descriptor: reduce}
    pickler.dump(value)
    return tuple(descriptors)


def _duplicate(index: int) -> Descriptor:
    return Descriptor(_received.get()[index])


def send(connection: socket.socket, message: Message) -> None:
    """Send a message; raise `OSError` if the other side has gone."""
    content = memoryview(message.content)
    header = _HEADER.pack(len(content), message.number, len(message.descriptors), message.kind)
    sent = socket.send_fds(connection, [header, content], list(message.descriptors))
    if sent < len(header):
        connection.sendall(header[sent:])
    connection.sendall(content[max(sent - len(header), 0) :])


def receive(connection: socket.socket) -> Message:
    """Wait for a message; raise `EOFError` if the other side has gone."""
    try:
        header, descriptors, _, _ = socket.recv_fds(
            connection, _HEADER.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not header:
            raise EOFError
        header += _read(connection, _HEADER.size - len(header))
        size, number, _, kind = _HEADER.unpack(header)
        return Message(kind, number, _read(connection, size), tuple(descriptors))
    except OSError as error:
        raise EOFError from error


def _read(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while len(view):
        done = connection.recv_into(view)
        if not done:
            raise EOFError
        view = view[done:]
    return content
