"""Commands on a Ray cluster on one machine: the bytes of the local engine."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datapipe
from datapipe import CopySpec, WorkerError

from .conftest import Run


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
    nodes: None, run: Run, shards: Path, tokenizer: Path, tmp_path: Path, contents: Any
) -> None:
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
def test_arrays_and_copies_of_a_cluster_are_those_of_one_machine(
    nodes: None, run: Run, shards: Path, tokenizer: Path, tmp_path: Path, contents: Any
) -> None:
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
    nodes: None, shards: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each process has a working folder of its own, and those of the nodes hold no dataset.
    monkeypatch.chdir(shards.parent)
    hidden = Path("/proc/self/cwd") / shards.name
    named = r"the node [\d.]+ cannot do the work: "
    with pytest.raises(WorkerError, match=named + ".*is missing or a different dataset there"):
        datapipe.verify_dataset(hidden, engine="ray")
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
