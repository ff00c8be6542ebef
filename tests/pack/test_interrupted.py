"""A pack that was killed anywhere is finished by the same command, with the same bytes."""

import gc
import os
import shutil

import pytest

from datapipe import IndexMismatch, PackError, pack_dataset
from datapipe.pack import pack_job
from datapipe.pack.journal import working_folder

from ..campaigns import rare
from ..killed import CALLS_UNTIL_KILLED
from ..programs import python
from ..waiting import wait_until
from .cases import cases
from .chats import turns

# Packs into new folders, each time killed at another of the system calls named: at every one, or at
# 50 random ones of a larger pack; or again and again into one folder, each time a little later.
# Prints the names of the folders.
KILLER = """
from datapipe.pack.pack_dataset import pack_dataset

raw, out, mode = sys.argv[1:]
options = dict(shard_size=3, max_rejects=9, workers=1)
def pack(out):
    pack_dataset(raw, out, **options)

if mode == "again":
    kills = 0
    while not calls_until_killed(10 + 7 * kills, lambda: pack(f"{out}/again")):
        kills += 1
    assert kills >= 2
    print("again")
    sys.exit()
if mode == "random":
    options = dict(shard_size=20, max_rejects=9, workers=2)
points = range(1, calls_until_killed(0, lambda: pack(f"{out}/whole")) + 1)
if mode == "random":
    points = sorted(random.Random(7).sample(points, 50))
for point in points:
    assert not calls_until_killed(point, lambda: pack(f"{out}/{point}"))
print(*points)
"""


def killed_packs(raw, out, mode):
    """Folders of packs that were killed."""
    done = python(CALLS_UNTIL_KILLED + KILLER, raw, out, mode, check=True)
    return [out / point for point in done.stdout.split()]


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder, make_broken):
    raw = make_folder(tmp_path_factory.mktemp("raw"), 7)
    make_broken(raw)
    return raw


def pack(raw, out):
    return pack_dataset(raw, out, shard_size=3, max_rejects=9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, raw, contents):
    """Every file of a pack that was not interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert pack(raw, out).shards == 3
    return contents(out)


@pytest.fixture
def interrupted(tmp_path, raw):
    """A pack whose last shard is missing, as the number of rejects stopped it."""
    with pytest.raises(PackError):
        pack_dataset(raw, tmp_path / "out", shard_size=3, max_rejects=3)
    assert not (tmp_path / "out" / "dataset.json").exists()
    return tmp_path / "out"


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["every", "again"])
def test_a_pack_killed_at_any_system_call_is_finished_by_the_same_command(
    tmp_path, raw, whole, contents, mode
):
    killed = killed_packs(raw, tmp_path, mode)
    assert len(killed) > 50 or mode == "again"
    for out in killed:
        if mode == "every":
            pack(raw, out)
        assert contents(out) == whole, f"killed at call {out.name}"


@pytest.mark.campaign
def test_a_pack_of_many_workers_killed_at_50_random_points_is_finished(
    tmp_path, make_folder, make_broken, contents
):
    raw = make_folder(tmp_path / "raw", 150)
    make_broken(raw)
    killed = killed_packs(raw, tmp_path, "random")
    assert len(killed) == 50
    whole = contents(tmp_path / "whole")
    for out in killed:
        report = pack_dataset(raw, out, shard_size=20, max_rejects=9, workers=1)
        assert report.samples == 150
        assert contents(out) == whole, f"killed at call {out.name}"


@pytest.mark.parametrize("mode", ["a", "w"])
@pytest.mark.parametrize("torn", ['{"shard": {"name": "shard-0000', '{"opti'])
def test_a_torn_journal_line_is_done_again(interrupted, raw, whole, contents, mode, torn):
    with (interrupted / ".pack" / "journal.jsonl").open(mode) as file:
        file.write(torn)
    pack(raw, interrupted)
    assert contents(interrupted) == whole


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"shard_size": 2}, "shard_size: '3' before, '2' now"),
        ({"check": "header"}, "check: 'decode' before, 'header' now"),
        ({"limit": 10}, "limit: None before, 10 now"),
        ({"max_side": 48}, "max_side: None before, 48 now"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_options_are_refused_with_the_difference(
    interrupted, raw, contents, change, difference, finished
):
    if finished:
        pack(raw, interrupted)
    before = contents(interrupted)
    with pytest.raises(PackError, match=f"other options.*{difference}.*new folder"):
        pack_dataset(raw, interrupted, **{"shard_size": 3, "max_rejects": 9} | change)
    assert contents(interrupted) == before


def test_a_finished_pack_says_so_and_is_left_alone(tmp_path, raw, whole, contents):
    out = tmp_path / "out"
    assert not pack(raw, out).finished_before
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    report = pack(raw, out)
    assert report.finished_before
    assert (report.samples, report.rejected, report.inputs) == (7, 4, 0)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    assert contents(out) == whole
    with working_folder(out) as work:  # as an append has it that is running
        assert pack(raw, out).finished_before
        assert work.exists()
    (out / ".pack").mkdir(exist_ok=True)
    before = contents(out)
    pack_dataset(raw, out, shard_size=3, max_rejects=9, dry_run=True, sidecars="wids")
    assert contents(out) == before
    assert (out / ".pack").exists()


def test_a_finished_pack_is_not_mistaken_for_one_of_other_raw_data(tmp_path, make_folder):
    raw, out = make_folder(tmp_path / "raw", 4), tmp_path / "out"
    pack_dataset(raw, out, shard_size=2)
    moved = shutil.move(raw, tmp_path / "moved")
    assert pack_dataset(moved, out, shard_size=2).finished_before
    with pytest.raises(PackError, match="4 inputs then, now 5"):
        pack_dataset(make_folder(tmp_path / "other", 5), out, shard_size=2)
    (out / "shard-000001.tar").unlink()
    with pytest.raises(IndexMismatch, match="pack the raw data again"):
        pack_dataset(moved, out, shard_size=2)


def test_a_rehearsal_refuses_what_the_pack_would(tmp_path, raw):
    (tmp_path / "thesis.doc").touch()
    for dry_run in (True, False):
        with pytest.raises(PackError, match=r"neither empty nor an unfinished pack.*thesis\.doc"):
            pack_dataset(raw, tmp_path, dry_run=dry_run)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_a_second_pack_into_the_same_folder_is_refused(interrupted, raw, contents):
    before = contents(interrupted)
    with working_folder(interrupted), pytest.raises(PackError, match="another pack is writing"):
        pack(raw, interrupted)
    assert contents(interrupted) == before


@pytest.fixture
def half_packed(tmp_path, make_folder, put):
    """Raw data with texts of all kinds, and a pack of it that was stopped after two shards."""
    raw = make_folder(tmp_path / "texts", 9)
    put(raw, {f"{number:03d}.json": {"width": number} for number in range(9)})
    put(raw, {"001.txt": b"\xef\xbb\xbfwith a mark and line breaks\r\n\n"})
    put(raw, {"002.json": turns("a", "b"), "000.jpg": b"broken", "008.jpg": b"broken"})
    with pytest.raises(PackError, match="inputs were rejected"):
        pack_dataset(raw, tmp_path / "half", shard_size=3, max_rejects=1)
    assert len(list((tmp_path / "half").glob("*.tar"))) == 2
    return raw, tmp_path / "half"


@pytest.mark.parametrize(
    ("name", "text"), [("001.txt", "edited"), ("002.json", "{}"), ("004.json", '{"width": 5}')]
)
def test_a_text_that_was_edited_in_between_is_refused_by_name(half_packed, contents, name, text):
    raw, out = half_packed
    before = {name: data for name, data in contents(out).items() if name.startswith("shard-")}
    original = (raw / name).read_bytes()
    (raw / name).write_text(text)
    with pytest.raises(PackError, match=f"{name} is not what a finished shard was packed from"):
        pack(raw, out)
    assert before.items() <= contents(out).items()
    (raw / name).write_bytes(original)
    assert pack(raw, out).samples == 7


def test_equal_texts_of_another_time_are_resumed(half_packed, tmp_path, contents):
    raw, out = half_packed
    copied = shutil.copytree(raw, tmp_path / "copied", copy_function=shutil.copyfile)
    (copied / "007.txt").write_text("of a sample that is in no shard yet")
    assert pack(copied, out).samples == 7
    pack(copied, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_a_text_in_a_tar_that_was_edited_in_between_is_refused(tmp_path, make_tar, jpeg):
    def tar(text):
        names = [f"{n}.{ext}" for n in range(9) for ext in ("jpg", "txt")]
        files = {name: jpeg(0) if "jpg" in name else text + name.encode() for name in names}
        return make_tar(tmp_path / "0.tar", (files | {"8.jpg": b"broken"}).items())

    with pytest.raises(PackError, match="inputs was rejected"):
        pack_dataset(tar(b"original"), tmp_path / "out", shard_size=3, max_rejects=0)
    with pytest.raises(PackError, match=r"0\.txt is not what a finished shard was packed from"):
        pack(tar(b"replaced"), tmp_path / "out")
    assert pack(tar(b"original"), tmp_path / "out").samples == 8


@pytest.mark.parametrize("change", ["added", "removed", "fewer"])
def test_raw_data_that_changed_in_between_is_refused(interrupted, raw, tmp_path, change):
    changed = shutil.copytree(raw, tmp_path / "changed", symlinks=True)
    if change == "added":
        shutil.copy(raw / "000.jpg", changed / "0000.jpg")
    elif change == "removed":
        (changed / "001.jpg").unlink()
        (changed / "001.txt").unlink()
    else:
        for path in sorted(changed.iterdir())[2:]:
            path.unlink()
    with pytest.raises(PackError, match="not what this was packed from"):
        pack(changed, interrupted)


@pytest.mark.parametrize("append", [False, True])
def test_a_pack_that_ended_while_another_was_deciding_keeps_its_data(
    tmp_path, raw, make_folder, contents, monkeypatch, append
):
    out, other = tmp_path / "out", make_folder(tmp_path / "other", 5)
    if append:
        pack(raw, out)
    decide = pack_job.Job.is_done
    expected, overtaking = {}, []

    def overtaken(self, before, append):
        done = decide(self, before, append)
        if not overtaking:
            overtaking.append(self)
            pack_dataset(other, out, append=append)
            expected.update(contents(out))
        return done

    monkeypatch.setattr(pack_job.Job, "is_done", overtaken)
    with pytest.raises(PackError, match="another pack has just ended here"):
        pack_dataset(raw, out, shard_size=2, max_rejects=9, append=append)
    assert contents(out) == expected


def test_options_may_change_as_long_as_no_shard_is_finished(tmp_path, raw, whole, contents):
    out = tmp_path / "out"
    with pytest.raises(PackError, match="max-rejects 0"):
        pack_dataset(raw, out, max_rejects=0, check="header", shard_size=100)
    pack(raw, out)
    assert contents(out) == whole


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_is_refused_unless_it_is_asked_for(
    tmp_path, raw, whole, contents, caplog
):
    with pytest.raises(PackError, match=r"cannot be locked \(.*--no-lock-check if nothing else"):
        pack(raw, tmp_path / "out")
    pack_dataset(raw, tmp_path / "out", shard_size=3, max_rejects=9, lock_check=False)
    assert contents(tmp_path / "out") == whole
    assert "cannot be locked" in caplog.text


@pytest.mark.parametrize("number", [1, 2, 4, 7, *map(rare, range(9, 30, 2))])
@pytest.mark.parametrize("call", ["fsync", "pwrite", "replace", "open"])
@pytest.mark.parametrize("fails", ["once", "from then on"])
def test_a_disk_that_fails_at_any_point_is_told_and_leaks_nothing(
    tmp_path, raw, whole, contents, failing_disk, fails, call, number
):
    out = tmp_path / "out"
    files = len(os.listdir("/proc/self/fd"))
    with failing_disk(call, number.__eq__ if fails == "once" else number.__le__):
        try:
            pack(raw, out)
        except PackError as error:
            assert "No space left on device" in str(error)  # noqa: PT017
        else:
            assert fails == "once" or number > 2
    gc.collect()  # errors of the writer's thread
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)  # others open files for a while
    pack(raw, out)
    assert contents(out) == whole


@pytest.mark.parametrize(("name", "harm"), cases("harm to an unfinished pack"))
def test_what_was_damaged_meanwhile_is_packed_again(
    tmp_path, raw, contents, caplog, monkeypatch, name, harm
):
    raw = shutil.copytree(raw, tmp_path / "raw")
    (raw / "000a.jpg").write_bytes(b"")  # rejected before the first shard is finished
    out = tmp_path / "out"
    with pytest.raises(PackError):
        pack_dataset(raw, out, shard_size=3, max_rejects=4)
    path = out / name
    content = path.read_bytes()
    assert content
    flipped = content[:30] + bytes([content[30] ^ 1]) + content[31:]
    path.write_bytes({"cut": content[:20], "flip": flipped}.get(harm, content))
    if harm == "gone":
        path.unlink()
    caplog.clear()
    pack(raw, out)
    pack(raw, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    said = [message for message in caplog.messages if str(path) in message]
    assert bool(said) == (harm != "none"), caplog.messages
