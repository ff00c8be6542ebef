"""`datapipe repair` brings whole samples back, and never a wrong one.

`DATAPIPE_DAMAGES` is the number of datasets that are damaged at random, of each kind.
"""

import os
import random
import resource
import shutil
from collections import Counter

import pytest

import datapipe
from datapipe import CopySpec
from datapipe.cli.verify import next_step
from datapipe.errors import PackError
from tests.flipping import flip
from tests.inspect.damage import KINDS, WAYS, harm, original
from tests.limits import limited

ROUNDS = int(os.environ.get("DATAPIPE_DAMAGES", "3"))


@pytest.mark.scaled
@pytest.mark.parametrize(
    ("lost", "unchecked"),
    [
        *(("nothing", False), ("index", False), ("manifest", False)),
        *(("index and columns", False), ("index and columns", True), ("all", True)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_brought_back_as_they_were(kind, lost, unchecked, originals, tmp_path, rejects):
    whole = originals[kind]
    counts = Counter()
    for number in range(ROUNDS):
        seed = f"repair {kind} {lost} {number}"
        choice = random.Random(seed)
        folder = whole.restore(tmp_path / "harmed")
        shard = choice.choice(whole.shards)
        way = choice.choice(WAYS)
        harm(folder / shard, way, choice)
        lose(folder, shard, lost, choice)
        hint = (seed, shard, way)
        changed = {key for name, key in whole.changed(folder) if name == shard}
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        spec = CopySpec(renumber=kind == "pax", space_check=False)
        report = datapipe.repair_dataset(folder, out, unchecked=unchecked, output=spec)
        assert datapipe.verify_dataset(out, deep=True).is_whole, hint
        of_source = {sample.source: sample for sample in whole.samples}
        of_source |= {f"{s.shard}:{s.key}": s for s in whole.samples}
        now = original(out).samples
        back = [of_source[sample.source] for sample in now if sample.source in of_source]
        assert len({id(sample) for sample in back}) == len(back), hint
        assert len(now) == report.samples, hint
        wrong = [
            sample.key
            for sample in now
            if (before := of_source.get(sample.source)) is None
            or dict(before.members) != dict(sample.members)
            or (kind != "pax" and before.key != sample.key)
        ]
        counts["wrong"] += len(wrong)
        has_checksums = lost in ("nothing", "index", "manifest")
        # Records of PAX headers have no checksum: a name that was changed there may be another's.
        if has_checksums or kind != "pax":
            for sample in now:  # none lacks a member
                assert sorted(dict(sample.members)) == ["jpg", "txt"], hint
        counts["brought back"] += len(back)
        counts["without checksum"] += report.without_checksum
        if not unchecked or way in ("cut", "remove"):
            assert not wrong, hint
        keys = {sample.key for sample in back}
        if lost in ("nothing", "index"):
            still = {s.key for s in whole.samples if s.key not in changed}
            assert still <= keys, (hint, still - keys, report.lost)
            gone = {s.source for s in whole.samples if s.key not in keys}
            assert gone <= set(report.again), (hint, gone, report.again)
            assert not gone or gone <= {line["source"] for line in rejects(out)}, hint
        else:
            assert {s.key for s in whole.samples if s.shard != shard} <= keys or lost == "all", hint
    print(f"{kind}, {lost} lost: {dict(counts)}")


def lose(folder, shard, lost, choice):
    """Remove or damage the files of the index."""
    index = [*folder.glob(f"{shard.removesuffix('.tar')}*.parquet")]
    gone = {
        "nothing": [],
        "manifest": [folder / "dataset.json"],
        "all": [folder / "dataset.json", *folder.glob("*.parquet")],
        "index": index,
        "index and columns": index,
    }[lost]
    for path in gone:
        if choice.random() < 0.5 and lost != "all":
            harm(path, choice.choice(["flips", "cut", "overwrite"]), choice)
        else:
            path.unlink()
    if lost in ("index and columns", "all"):
        shutil.rmtree(folder / "columns")


def test_lost_indexes_are_made_again_as_they_were(originals, tmp_path):
    for kind in KINDS:
        whole = originals[kind]
        folder = whole.restore(tmp_path / kind)
        index = sorted(folder.glob("*.parquet"))[1]
        index.unlink()
        report = datapipe.repair_dataset(folder, in_place=True)
        assert report.remade == (index.name,)
        assert datapipe.verify_dataset(folder).is_whole
        assert original(folder).files == whole.files


def test_a_view_whose_index_is_lost_gets_no_samples_that_it_left_out(whole, tmp_path):
    view, out = tmp_path / "view", tmp_path / "out"
    options = {"where": "key != '000000001'", "output": CopySpec(view=True)}
    datapipe.select_samples(whole.restore(tmp_path / "shards"), view, **options)
    index = view / "shard-000000.parquet"
    content = index.read_bytes()
    index.unlink()
    shutil.rmtree(view / "columns")
    assert "make the view again; `datapipe repair" in next_step(datapipe.verify_dataset(view))
    with pytest.raises(PackError, match=r"shard-000000\.parquet: .*the view again; nothing was"):
        datapipe.repair_dataset(view, in_place=True, unchecked=True)
    report = datapipe.repair_dataset(view, out, unchecked=True)
    assert (report.samples, report.without_checksum, len(report.lost)) == (8, 0, 1)
    index.write_bytes(content)
    note = "2 members of no sample of the view: only the headers were checked"
    assert datapipe.verify_dataset(view).notes == (note,)
    assert datapipe.diff_datasets(view, out).only_b == 0


def test_a_repaired_dataset_is_no_view(whole, tmp_path):
    with pytest.raises(PackError, match="shards of its own; leave view out"):
        datapipe.repair_dataset(whole.folder, tmp_path / "out", output=CopySpec(view=True))
    assert not (tmp_path / "out").exists()


def test_a_lost_manifest_is_made_again(harmed, whole):
    (harmed / "dataset.json").write_text("{")
    error = rf"{harmed}: its repair failed .* check that {harmed} and .* room"
    with limited(resource.RLIMIT_FSIZE, 100), pytest.raises(PackError, match=error):
        datapipe.repair_dataset(harmed, in_place=True)
    report = datapipe.repair_dataset(harmed, in_place=True)
    assert "dataset.json" in report.remade
    assert (harmed / "dataset.json.damaged").read_text() == "{"
    assert datapipe.verify_dataset(harmed).is_whole
    for name in whole.files:
        if name.endswith((".tar", ".parquet")):
            assert (harmed / name).read_bytes() == whole.files[name], name
    loader = datapipe.make_loader(harmed, batch_size=4, image=None)
    assert sum(len(batch["key"]) for batch in loader) == 12


def test_a_tar_of_someone_else_that_was_cut_is_salvaged(originals, tmp_path):
    """It was never indexed; the sample before the cut may have lost a member."""
    (tmp_path / "tars").mkdir()
    content = originals["gnu"].files["000.tar"]
    (tmp_path / "tars" / "a.tar").write_bytes(content[: originals["gnu"].samples[3].spans[0][0]])
    report = datapipe.repair_dataset(tmp_path / "tars", tmp_path / "out", unchecked=True)
    assert (report.samples, report.without_checksum) == (2, 2)
    assert [finding.key for finding in report.lost] == ["", "002"]
    assert "damage is next to it" in report.lost[1].problem


def test_samples_without_a_checksum_are_left_out_unless_asked_for(
    tmp_path, harmed, whole, rejects, contents
):
    """A bit of a text flipped, and it can be read as before; index and columns are gone."""
    flipped = whole.samples[5]
    (harmed / "shard-000001.parquet").unlink()
    shutil.rmtree(harmed / "columns")
    flip(harmed / flipped.shard, flipped.spans[1][0])
    report = datapipe.repair_dataset(harmed, tmp_path / "out")
    assert (report.samples, report.without_checksum) == (8, 4)
    assert [f.key for f in report.lost] == [s.key for s in whole.samples[4:8]]
    lines = rejects(tmp_path / "out")
    assert len(lines) == 4
    assert lines[1]["reason"] == "000000005: its bytes have no checksum"
    report = datapipe.repair_dataset(harmed, tmp_path / "all", unchecked=True)
    assert (report.samples, report.without_checksum, report.lost) == (12, 4, ())
    before = contents(harmed)
    with pytest.raises(PackError, match=r"shard-000001.tar.*nothing was changed.*--unchecked"):
        datapipe.repair_dataset(harmed, in_place=True)
    assert contents(harmed) == before
    report = datapipe.repair_dataset(harmed, in_place=True, unchecked=True)
    assert (report.samples, report.without_checksum) == (12, 4)
    for path in harmed.glob("*.parquet"):
        path.unlink()
    (harmed / "dataset.json").unlink()
    shutil.rmtree(harmed / "columns")
    with pytest.raises(PackError, match=r"12 have no checksum; --unchecked"):
        datapipe.repair_dataset(harmed, tmp_path / "none")


def test_the_manifest_vouches_for_an_index_that_is_made_again_as_it_was(originals, tmp_path):
    """The manifest of someone else's tars has a digest of the index, and so of all checksums."""
    folder = originals["gnu"].restore(tmp_path / "harmed")
    next(folder.glob("*.parquet")).unlink()
    shutil.rmtree(folder / "columns")
    report = datapipe.repair_dataset(folder, tmp_path / "out")
    assert (report.samples, report.without_checksum, report.lost) == (12, 0, ())
