"""Jobs that tests send to worker processes."""

import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np

from datapipe.workers.messages import Descriptor


def work(job):
    """Do job (number, what to do)."""
    number, kind, *rest = job
    if kind == "fail":
        raise LookupError(f"job {number}")
    if kind == "kill":
        print("these are my last words", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(7)
    if kind == "odd error":
        raise OddError(number, "cannot be pickled")
    if kind == "print":
        print(rest[0], file=sys.stderr)
        os.write(2, b"and from C\n")
    if kind == "echo":
        return rest[0]
    if kind == "hang":
        Path(rest[0]).write_text(str(os.getpid()))
        threading.Event().wait()
    if kind == "state":
        return os.getcwd(), dict(os.environ), sys.argv, sys.path, threading.active_count()
    if kind == "random":
        return os.getpid(), random.random(), np.random.random()
    if kind == "pid":
        return os.getpid()
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGINT)
    if kind == "unsendable":
        return lambda: number
    return number * 10


class OddError(Exception):
    def __init__(self, number, reason):
        super().__init__(reason)


def worker():
    """Return the function of a worker."""
    return work


def broken_worker():
    raise LookupError("no such worker")


def repeating_worker():
    """Return a function that gives as many results as the job says, and fails at -1."""

    def repeat(job):
        for number in range(job):
            yield job, number
        if job < 0:
            raise LookupError("below zero")

    return repeat


def writer(descriptor):
    """Return a function that writes to a file of the parent, and one that gives its own."""
    file = os.fdopen(descriptor.number, "w")

    def write(text):
        file.write(text)
        file.flush()
        memory = os.memfd_create("answer")
        os.write(memory, text.upper().encode())
        return Descriptor(memory)

    return write
