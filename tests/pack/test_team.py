"""Workers give the same shards in any number, and their end is noticed."""

import os
import subprocess
import sys
from contextlib import closing

import psutil
import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import InlineBlob, RawImage, RawSample
from datapipe.pack.workers import pool as team_module
from datapipe.pack.workers.pool import PackWorkers
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.segments import SEGMENT

from .videos import write_video


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path, make_folder, make_broken, make_tar, jpeg, contents, members
):
    raw = make_folder(tmp_path / "raw", 100)
    make_broken(raw)
    for number in range(3):
        write_video(raw / f"{number}.mp4", 5 + number)
    files, kept = [], []
    for number in range(100):
        size = SEGMENT + number if number % 30 == 1 else 400_000 if number % 5 == 1 else number
        sample = {"jpg": jpeg(number), "bin": bytes([number]) * size}
        if number % 7 == 5:
            sample["jpg"] = b"no image"
        else:
            kept.append(sample)
        files += [(f"{number}.{ext}", data) for ext, data in sample.items()]
    tar = make_tar(tmp_path / "raw.tar", files)
    for workers in (1, 2, 5):
        options = {"workers": workers, "max_rejects": "50%", "video_frames": "fps=2,max=8"}
        pack_dataset(raw, tmp_path / f"{workers}" / "folder", shard_size="20KB", **options)
        pack_dataset(tar, tmp_path / f"{workers}" / "tar", **options)
    expected = contents(tmp_path / "1")
    assert len([name for name in expected if name.endswith(".tar")]) > 4
    assert contents(tmp_path / "2") == contents(tmp_path / "5") == expected
    assert list(members(tmp_path / "1" / "tar").values()) == kept


def processes():
    """The worker processes of this one: children of its children."""
    this = psutil.Process()
    return set(this.children(recursive=True)) - set(this.children())


def test_a_worker_that_is_ended_is_told_with_the_remedy(jpeg):
    before = processes()

    def ending():
        for number in range(3000):
            if number == 1500:
                (processes() - before).pop().kill()
            yield RawSample(f"#{number}", (RawImage(InlineBlob(jpeg(number), "photo")),))

    said = pytest.raises(PackError, match=r"SIGKILL.*fewer --workers.*same command")
    with closing(PackWorkers(PrepareOptions(), 2)) as team, said:
        list(team.prepared(ending(), 0))


def test_inputs_that_hold_many_bytes_are_handed_out_few_at_a_time():
    blob = InlineBlob(bytes(1 << 20), "b")
    chunks = team_module.chunks_of(
        [RawSample(f"#{i}", others=(("bin", blob),)) for i in range(20)], 0
    )
    assert [len(chunk.inputs) for chunk in chunks] == [4] * 5


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
