"""Commands on a Ray cluster on one machine: the bytes of the local engine."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import datapipe
from datapipe import CopySpec, WorkerError
from tests.flipping import flip


@pytest.fixture(scope="module")
def nodes():
    """A cluster that this program is connected to, and that commands use."""
    ray = pytest.importorskip("ray")
    options = {"include_dashboard": False, "object_store_memory": 100 << 20}
    ray.init("local", num_cpus=2, logging_level="warning", **options)
    yield
    ray.shutdown()


pytestmark = [
    pytest.mark.campaign,
    pytest.mark.flaky(reruns=2, reruns_delay=2),  # Ray's processes may not start where it is busy
]


def test_a_count_and_a_check_on_a_cluster_are_those_of_one_machine(
    nodes, run, shards, tokenizer, tmp_path, contents
):
    counting = ("index", shards, "--tokenizer", tokenizer, "--template", "chatml")
    damaged = damage(shards, tmp_path / "damaged")
    found = {}
    for engine in ("local", "ray"):
        assert run(*counting, "--engine", engine).exit_code == 0
        tokens = next(shards.glob("tokens-*"))
        found[engine] = contents(tokens), check(damaged, engine)
        shutil.rmtree(tokens)
    assert found["ray"] == found["local"]
    assert len(found["ray"][1].findings) > 1


def check(dataset, engine):
    return replace(datapipe.verify_dataset(dataset, engine=engine), seconds=0)


def damage(shards, folder):
    """A copy of the dataset with a shard missing, and another one cut."""
    shutil.copytree(shards, folder)
    (folder / "shard-000000.tar").unlink()
    tar = folder / "shard-000001.tar"
    tar.write_bytes(tar.read_bytes()[:-9000])
    return folder


def test_checks_of_arrays_and_views_on_a_cluster_are_those_of_one_machine(nodes, shards, tmp_path):
    arrays, view = tmp_path / "arrays", tmp_path / "view"
    image = datapipe.ImageSpec(size=8)
    datapipe.convert_dataset(shards, arrays, image=image)
    datapipe.select_samples(shards, view, where="images > 0", output=CopySpec(view=True))
    # What the tasks compare, and what the driver does.
    for path, at in (("images.npy", 128 + 3 * 192), ("texts.npy", 128), ("image_crc32.npy", 130)):
        whole = check(arrays, "local")
        assert whole == check(arrays, "ray")
        assert whole.damaged_samples == len(whole.findings)
        flip(arrays / path, at)
    (arrays / "texts.npy").unlink()
    found = check(arrays, "local")
    assert found == check(arrays, "ray")
    assert [*sorted(each.file for each in found.findings)] == ["image_crc32.npy", "texts.npy"]
    assert check(view, "local") == check(view, "ray")
    assert check(view, "ray").is_whole


def test_arrays_that_a_node_does_not_see_are_named(nodes, shards, tmp_path, monkeypatch):
    arrays = tmp_path / "arrays"
    datapipe.convert_dataset(shards, arrays, image=datapipe.ImageSpec(size=8))
    monkeypatch.chdir(tmp_path)  # the nodes have another working folder
    for name in ("images.npy", "texts.npy"):
        (arrays / name).rename(tmp_path / name)
        (arrays / name).symlink_to(Path("/proc/self/cwd") / name)
        message = rf"{name}: is missing on the node [\d.]+, but is intact here"
        with pytest.raises(WorkerError, match=message):
            datapipe.verify_dataset(arrays, engine="ray")
        (arrays / name).unlink()
        (tmp_path / name).rename(arrays / name)


def test_arrays_and_copies_of_a_cluster_are_those_of_one_machine(
    nodes, run, shards, tokenizer, tmp_path, contents
):
    damaged = damage(shards, tmp_path / "damaged")
    texts = ("--tokenizer", tokenizer, "--template", "chatml")
    for name, command, options in (
        ("some", ("select", shards), ("--where", "images > 0", "--shard-size", "9")),
        ("both", ("merge", shards, shards), ("--renumber",)),
        ("whole", ("repair", damaged), ()),
        ("arrays", ("convert", shards), ("--image-size", "32", *texts)),
        ("texts", ("convert", shards), ("--image", "none")),
    ):
        for engine in ("local", "ray"):
            made = run(*command, tmp_path / f"{engine}-{name}", *options, "--engine", engine)
            assert "Error" not in made.stderr
        there = contents(tmp_path / f"ray-{name}")
        assert there == contents(tmp_path / f"local-{name}")
        assert len(there) > 2, name


def test_a_node_that_does_not_see_dataset_or_output_is_named(
    nodes, run, raw, shards, tokenizer, tmp_path, monkeypatch
):
    # Each process has a working folder of its own, and those of the nodes hold no dataset.
    monkeypatch.chdir(shards.parent)
    hidden = Path("/proc/self/cwd") / shards.name
    named = r"the node [\d.]+ cannot do the work: "
    with pytest.raises(WorkerError, match=named + ".*is missing or a different dataset there"):
        datapipe.verify_dataset(hidden, engine="ray")
    # What is packed already is only counted.
    counting = ("--tokenizer", tokenizer, "--template", "chatml", "--engine", "ray")
    counted = run("pack", raw, hidden, "--shard-size", 16, *counting)
    assert counted.exit_code == 1
    assert f"cannot do the work: {hidden}: no dataset.json here" in counted.stderr
    counted = run("pack", raw, hidden, "--shard-size", 16, *counting, "--runtime-env", "{}")
    assert counted.exit_code == 0, counted.stderr  # this process counted
    assert "text tokens" in counted.stdout
    output = CopySpec(engine="ray")
    with pytest.raises(datapipe.StoreError, match=r"on the node [\d.]+: .*cannot be opened"):
        datapipe.select_samples(hidden, tmp_path / "out", number=3, output=output)
    with pytest.raises(
        WorkerError, match=named + "the output folder /proc/self/cwd/out does not exist"
    ):
        datapipe.select_samples(shards, "/proc/self/cwd/out", number=3, output=output)
    image = datapipe.ImageSpec(size=8)
    with pytest.raises(WorkerError, match=named + ".*images.npy"):
        datapipe.convert_dataset(shards, "/proc/self/cwd/arrays", image=image, engine="ray")
