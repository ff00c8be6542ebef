"""Ports for servers that a test starts in other processes."""

import socket
from contextlib import suppress
from random import SystemRandom


def free_port() -> int:
    """Return a port of this machine that a child may bind later.

    Systems take the ports of connections from higher numbers, so that no other test's connection
    is given it meanwhile.
    """
    for port in SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise OSError("none of a hundred ports is free")
