"""Commands on a Ray cluster on one machine: the bytes of the local engine."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import datapipe
from datapipe import CopySpec, WorkerError
from datapipe.inspect.findings import VerifyReport
from datapipe.workers.engine import EngineName


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """A cluster that this program is connected to, and that commands use."""
    ray = pytest.importorskip("ray")
    store = 100 << 20  # bytes
    options = {"include_dashboard": False, "object_store_memory": store}
    ray.init("local", num_cpus=2, logging_level="warning", **options)
    yield
    ray.shutdown()


# Ray's own processes may not start where a machine is busy.
on_nodes = pytest.mark.flaky(reruns=2, reruns_delay=2)


@pytest.mark.campaign
@on_nodes
def test_a_copy_a_check_and_a_count_on_a_cluster_are_those_of_one_machine(
    nodes, run, shards, tokenizer, tmp_path, contents
):
    counting = ("index", shards, "--tokenizer", tokenizer, "--template", "chatml")
    copying = ("select", shards, "--where", "images > 0", "--shard-size", "9")
    damaged = damage(shards, tmp_path / "damaged")
    found = {}
    for engine in ("local", "ray"):
        out = tmp_path / engine
        assert run(*copying, out, "--engine", engine).exit_code == 0
        assert run(*counting, "--engine", engine).exit_code == 0
        tokens = next(shards.glob("tokens-*"))
        report = datapipe.verify_dataset(damaged, engine=engine)
        found[engine] = (contents(out), contents(tokens), report.findings, report.damaged_samples)
        shutil.rmtree(tokens)
    assert found["ray"] == found["local"]
    assert len(found["ray"][0]) > 4
    assert len(found["ray"][2]) > 1


def damage(shards: Path, folder: Path) -> Path:
    """A copy of the dataset with a shard missing, and another one cut."""
    shutil.copytree(shards, folder)
    (folder / "shard-000000.tar").unlink()
    tar = folder / "shard-000001.tar"
    tar.write_bytes(tar.read_bytes()[:-9000])
    return folder


@pytest.mark.campaign
@on_nodes
def test_checks_of_arrays_and_views_on_a_cluster_are_those_of_one_machine(nodes, shards, tmp_path):
    arrays, view = tmp_path / "arrays", tmp_path / "view"
    image = datapipe.ImageSpec(size=8)
    datapipe.convert_dataset(shards, arrays, image=image)
    datapipe.select_samples(shards, view, where="images > 0", output=CopySpec(view=True))
    # What the tasks compare, and what the driver does.
    for path, at in (("images.npy", 128 + 3 * 192), ("texts.npy", 128), ("image_crc32.npy", 130)):
        whole = reports(arrays)
        assert whole[0] == whole[1]
        assert whole[0].damaged_samples == len(whole[0].findings)
        with (arrays / path).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
    (arrays / "texts.npy").unlink()
    here, there = reports(arrays)
    assert here == there
    assert {finding.file for finding in here.findings} == {"image_crc32.npy", "texts.npy"}
    assert len(here.findings) == 2
    here, there = reports(view)
    assert here == there
    assert (here.is_whole, here.samples) == (True, datapipe.summarize_dataset(view).samples)


def reports(dataset: Path) -> list[VerifyReport]:
    """Check a dataset here, then on the cluster."""
    engines: tuple[EngineName, ...] = ("local", "ray")
    return [
        replace(datapipe.verify_dataset(dataset, engine=engine), seconds=0) for engine in engines
    ]


@pytest.mark.campaign
@on_nodes
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


@pytest.mark.campaign
@on_nodes
def test_arrays_and_copies_of_a_cluster_are_those_of_one_machine(
    nodes, run, shards, tokenizer, tmp_path, contents
):
    damaged = damage(shards, tmp_path / "damaged")
    options = ("--image-size", "32", "--tokenizer", tokenizer, "--template", "chatml")
    for engine in ("local", "ray"):
        made = run("convert", shards, tmp_path / f"{engine}-arrays", *options, "--engine", engine)
        assert made.exit_code == 0, made.stderr
        out = tmp_path / f"{engine}-both"
        made = run("merge", shards, shards, out, "--renumber", "--engine", engine)
        assert made.exit_code == 0, made.stderr
        made = run("repair", damaged, tmp_path / f"{engine}-whole", "--engine", engine)
        assert "Error" not in made.stderr
    for name in ("arrays", "both", "whole"):
        assert contents(tmp_path / f"ray-{name}") == contents(tmp_path / f"local-{name}")
    texts = ("convert", shards, tmp_path / "texts", "--image", "none", "--engine", "ray")
    assert run(*texts).exit_code == 0


@pytest.mark.campaign
@on_nodes
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
