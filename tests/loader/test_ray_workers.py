"""Batches that are made on a Ray cluster: the same bits, errors with the node, lost nodes."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import datapipe
from datapipe import CacheSpec, DecodeError, ImageSpec, PlanError, WorkerError
from datapipe.testing import assert_same_batches

from ..remote.server import serving
from .stated import darken

ray = pytest.importorskip("ray")

SMALL = ImageSpec(size=16)
NODE = {"num_cpus": 1, "object_store_memory": 120 << 20, "include_dashboard": False}


pytestmark = [pytest.mark.campaign, pytest.mark.flaky(reruns=2, reruns_delay=2)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two CPUs, whose nodes have another cache folder."""
    own = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, runtime_env={"env_vars": own}, **options)
    yield
    ray.shutdown()


@pytest.fixture
def make_far(make, cluster):
    return lambda **options: make(**{"workers": "ray", "image": SMALL} | options)


def test_batches_have_the_same_bits_as_local_ones(make, make_far, text, packed, tmp_path):
    native = ImageSpec(resize="native", patch=8, merge=2, min_pixels=256, max_pixels=4096)
    images = {"image": ImageSpec(size=24, random_crop=(0.2, 1.0), flip=0.5)}
    for options in (
        images | {"meta": ("key", "source", "image_geometry"), "epochs": 2},
        images | {"transform": darken, "where": "images > 0"},
        {"image": native, "text": text(image_tokens="native"), "pack": 300, "num_workers": 1},
        {"image": None, "text": text(), "max_tokens": 100, "rank": 1, "world_size": 2},
    ):
        assert_same_batches(make_far(**options), make(**{"num_workers": 0} | options))
    arrays = tmp_path / "arrays"
    datapipe.convert_dataset(packed, arrays, image=SMALL, text=text(), workers=1)
    mixture = {
        "path": {str(packed): 0.6, str(arrays): 0.4},
        "text": text(),
        "image": SMALL,
        "batch_size": 4,
    }
    far = datapipe.make_loader(**mixture, workers="ray")
    assert_same_batches(far, datapipe.make_loader(**mixture, num_workers=0))


def test_nodes_open_a_url_and_a_list_of_tars(packed, cluster, tmp_path):
    pytest.importorskip("aiohttp")
    tars = [shutil.copy(packed / f"shard-00000{number}.tar", tmp_path) for number in (0, 2)]
    with serving(packed) as server:
        for path in (server.url, tars):
            options = {"path": path, "batch_size": 4, "image": SMALL}
            far = datapipe.make_loader(**options, workers="ray")
            assert_same_batches(far, datapipe.make_loader(**options, num_workers=0))


def test_a_state_is_continued_by_threads_and_the_other_way_round(make, make_far):
    keys = [batch["key"] for batch in make(num_workers=0)]
    for first, second in ((make_far, make), (make, make_far)):
        begun = first()
        batches = iter(begun)
        seen = [next(batches)["key"] for _ in range(3)]
        resumed = second()
        resumed.load_state_dict(begun.state_dict())
        begun.close()
        assert seen + [batch["key"] for batch in resumed] == keys


def test_a_loop_that_is_left_can_be_begun_again_and_again(make_far):
    loader = make_far(shuffle=False)
    for _ in range(20):  # tasks that were begun come to their end
        batch = next(iter(loader))
        assert batch["key"][0] == "000000000"
        batch["pixel_values"] += 1  # it is the training loop's to write to


class Idler:
    """An actor that has all CPUs, and does nothing."""


def test_the_log_says_that_no_cpu_is_free(make_far, monkeypatch, caplog):
    idler = ray.remote(num_cpus=2)(Idler).remote()
    ray.get(idler.__ray_ready__.remote())

    def release(record):
        ray.kill(idler)
        return True

    monkeypatch.setattr("datapipe.loader.workers.executor.logger.filters", [release])
    workers = datapipe.WorkerSpec("ray", stall_warning=0.1)
    assert len(list(make_far(shuffle=False, workers=workers))) == 10
    said = "the batch from sample 000000000 of shard-000000.tar is not done, and 0 of"
    assert said in caplog.text


def test_errors_name_the_sample_and_the_node(damaged, cluster):
    def make(on_error, **workers):
        options = {"batch_size": 2, "shuffle": False, "image": SMALL}
        return datapipe.make_loader(damaged, on_error=on_error, **options, **workers)

    seen = []
    with pytest.raises(DecodeError, match=r"sample 000000006 .*\(on the node [\d.]+\)"):
        seen.extend(key for batch in make("raise", workers="ray") for key in batch["key"])
    assert seen == [f"{number:09}" for number in range(6)]
    skipping = make("skip", workers="ray")
    assert_same_batches(skipping, make("skip", num_workers=0))
    assert skipping.skipped == 2


def test_a_dataset_that_a_node_does_not_see_is_named_with_the_node(packed, cluster, tmp_path):
    shutil.copytree(packed, folder := tmp_path / "copy")
    loader = datapipe.make_loader(folder, batch_size=4, image=SMALL, workers="ray")
    shutil.rmtree(folder)
    with pytest.raises(WorkerError, match=r"the node [\d.]+ cannot open .*/copy: .*nodes share"):
        next(iter(loader))


def test_what_cannot_be_done_on_other_nodes_is_refused(make_far):
    with pytest.raises(PlanError, match="workers='ray': cache= keeps samples on this machine"):
        make_far(cache=CacheSpec(memory="1MB"))


def die(sample, generator):
    """A user's transform: a sample that kills its worker."""
    if sample["key"].endswith("5"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_batch_that_kills_its_workers_is_named(make_far):
    loader = make_far(transform=die, shuffle=False, batch_size=2, num_workers=1)
    batches = iter(loader)
    assert [next(batches)["key"][0] for _ in range(2)] == ["000000000", "000000002"]
    with pytest.raises(
        WorkerError,
        match=r"batch from sample 000000004 .* failed in each of 3 attempts: the process .* died",
    ):
        next(batches)


@pytest.fixture
def nodes(monkeypatch):
    """A cluster of three nodes of one CPU, at `RAY_ADDRESS`."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args=NODE)
    for _ in range(2):
        made.add_node(**NODE)
    made.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()


def linger(sample, generator):
    """A user's transform: on a node whose name is in a file it says so, and never ends."""
    folder = Path(os.environ["LINGER"])
    if (folder / ray.get_runtime_context().get_node_id()).exists():
        (folder / "at work").touch()
        time.sleep(3600)
    return sample


@pytest.mark.flaky(reruns=2, reruns_delay=2)  # Ray's own processes may not start on a busy machine
def test_batches_of_a_node_that_dies_are_made_on_others(make, nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("LINGER", str(tmp_path))
    runtime = {"env_vars": {"LINGER": str(tmp_path)}}
    ray.init(address=nodes.address, runtime_env=runtime, log_to_driver=False)
    victim = nodes.list_all_nodes()[-1]
    (tmp_path / victim.node_id).touch()
    options = {"transform": linger, "image": SMALL, "epochs": 3}
    far = make(workers="ray", num_workers=None, **options)
    assert far.options.num_workers == 3

    def kill():
        while not (tmp_path / "at work").exists():
            time.sleep(0.05)
        nodes.remove_node(victim, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    got = list(far)
    killer.join()
    keys = [batch["key"] for batch in make(image=None, epochs=3, num_workers=0)]
    assert [batch["key"] for batch in got] == keys
