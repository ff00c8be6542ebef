"""Workers give the same parts in the same order, and their end is noticed."""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from datapipe import PackError
from datapipe.pack.input.raw_sample import Blob, InlineBlob, RawImage, RawSample, Reject
from datapipe.pack.workers import pool as team_module
from datapipe.pack.workers.pool import PackWorkers
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.segments import SEGMENT


def inputs(jpeg, number):
    """Samples of all sizes, some larger than a segment, with rejects among them."""
    for i in range(number):
        if i % 11 == 3:
            yield Reject(f"#{i}", "given up", "DecodeError")
        elif i % 7 == 5:
            yield RawSample(f"#{i}", (RawImage(InlineBlob(b"no image", f"{i}.jpg")),))
        else:
            big = SEGMENT + i if i % 50 == 1 else 400_000 if i % 5 == 1 else 10 * i
            yield RawSample(
                f"#{i}",
                (RawImage(InlineBlob(jpeg(i), "photo")),),
                caption=f"caption {i}",
                others=(("bin", InlineBlob(bytes([i % 256]) * big, "bin")),),
            )


def prepared(inputs, first, options, workers):
    with closing(PackWorkers(options, workers)) as team:
        yield from team.prepared(inputs, first)


def flat(results):
    """Everything that came, without regard to how it was parted."""
    taken, outcomes, data, rows = [], [], [], []
    for chunk, part in results:
        assert len(chunk) == len(part.outcomes)
        taken += chunk
        outcomes += part.outcomes
        assert len(part.data) == sum(o.bytes for o in part.outcomes if not isinstance(o, Reject))
        shift = sum(map(len, data))
        data.append(bytes(part.data))
        rows += list(zip(part.rows.key, part.rows.text_bytes, strict=True))
        rows += [(offset + shift) for offset in part.rows.offset]
    return taken, outcomes, b"".join(data), sorted(map(str, rows))


def test_workers_bring_what_one_process_brings(jpeg):
    alone = flat(prepared(inputs(jpeg, 300), 5, PrepareOptions(), workers=1))
    assert sum(isinstance(outcome, Reject) for outcome in alone[1]) > 60
    assert flat(prepared(inputs(jpeg, 300), 5, PrepareOptions(), workers=3)) == alone


def processes(parent):
    """Ids of the worker processes of a process: children of its children."""

    def children(process):
        try:
            with open(f"/proc/{process}/task/{process}/children") as file:
                return list(map(int, file.read().split()))
        except FileNotFoundError:
            return []

    return {process for child in children(parent) for process in children(child)}


def test_a_worker_that_is_ended_is_told_with_the_remedy(jpeg):
    before = processes(os.getpid())

    def ending():
        for number, taken in enumerate(inputs(jpeg, 3000)):
            if number == 1500:
                os.kill(min(processes(os.getpid()) - before), signal.SIGKILL)
            yield taken

    with pytest.raises(PackError, match=r"SIGKILL.*fewer --workers.*same command"):
        list(prepared(ending(), 0, PrepareOptions(), workers=2))


def test_inputs_that_hold_many_bytes_are_handed_out_few_at_a_time():
    held = [
        RawSample(f"#{i}", others=(("bin", InlineBlob(bytes(1 << 20), "b")),)) for i in range(20)
    ]
    chunks = [len(chunk.inputs) for chunk in team_module.chunks_of(held, 0)]
    assert chunks == [4] * 5


def test_modules_beside_the_caller_are_not_taken_for_those_of_python(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 1)
    for number in range(150):
        os.link(raw / "000.jpg", raw / f"a{number:05d}.jpg")
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "odd:name").mkdir()
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p] + [b'bytes', 'odd:name']\n"
        "from datapipe import pack_dataset; pack_dataset('raw', 'out', workers=2)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)


def test_a_file_read_by_workers_may_vanish(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 1)
    missing = RawSample("gone.jpg", (RawImage(Blob(raw / "gone.jpg")),))
    ((_, part),) = prepared([missing], 0, PrepareOptions(), workers=1)
    assert part.outcomes == [
        Reject("gone.jpg", "file is missing", "MissingMember", str(raw / "gone.jpg"))
    ]
