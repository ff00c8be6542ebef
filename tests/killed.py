"""Source of programs that kill themselves at a system call."""

CALLS_UNTIL_KILLED = """
import itertools, os, random, signal, sys

CALLS = ("mkdir", "open", "pwrite", "fsync", "ftruncate", "replace", "rename", "unlink", "rmdir")

def calls_until_killed(deadline, work):
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        return int(os.read(reader, 20) or 0)
    count = itertools.count(1)

    def watched(real):
        def call(*args, **options):
            if next(count) == deadline:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return call

    os.fsync = lambda descriptor: None  # slow, and a killed process loses nothing without it
    for name in CALLS:
        setattr(os, name, watched(getattr(os, name)))
    work()
    os.write(writer, str(next(count) - 1).encode())
    os._exit(0)
"""
"""`calls_until_killed(deadline, work)` calls `work` in a process of its own, and kills it at the
system call of this number. It returns 0 then, and otherwise the number of calls."""
