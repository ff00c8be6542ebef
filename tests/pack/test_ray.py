"""Packing on a Ray cluster of several nodes on one machine: the bytes of one machine."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from datapipe import PackError, StoreError, pack_dataset
from datapipe.pack import ray_engine
from tests.remote.faulty_proxy import bucket_serving
from tests.waiting import wait_until

from .videos import write_video

ray = pytest.importorskip("ray")

# Nodes are killed at moments that a busy machine may miss, and Ray's own processes may not start.
pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)

OPTIONS = {"shard_size": 70, "max_rejects": 9}
NODE = {"num_cpus": 1, "object_store_memory": 120 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder, make_broken):
    raw = make_folder(tmp_path_factory.mktemp("raw"), 700)
    make_broken(raw)
    return raw


@pytest.fixture(scope="module")
def whole(tmp_path_factory, raw, contents):
    """Every file of a pack by this machine's processes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    pack_dataset(raw, out, workers=1, **OPTIONS)
    return contents(out)


@pytest.fixture
def start(monkeypatch):
    """Start a cluster of so many nodes, for this test; nodes get the variables that are given."""
    from ray.cluster_utils import Cluster

    clusters = []

    def start(nodes, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        clusters.append(cluster)
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        return cluster

    yield start
    ray.shutdown()
    for cluster in clusters:
        cluster.shutdown()


def test_a_cluster_is_started_and_ended_and_the_bytes_are_equal(
    tmp_path, make_folder, make_broken, contents
):
    raw = make_folder(tmp_path / "raw", 300)
    make_broken(raw)
    for number in range(3):
        write_video(raw / f"{number}.mp4", 5 + number)
    for engine in ("local", "ray"):
        options = {"engine": engine, "video_frames": "fps=10,max=4", "workers": 2, **OPTIONS}
        report = pack_dataset(raw, tmp_path / engine, **options)
        assert (report.samples, report.rejected, report.lost) == (303, 4, 0)
        assert (report.videos, report.frames) == (3, 12)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert not ray.is_initialized()


@pytest.mark.campaign
@pytest.mark.parametrize(("nodes", "patience"), [(2, 0), (4, ray_engine.PATIENCE)])
def test_the_bytes_do_not_depend_on_the_number_of_nodes(
    tmp_path, raw, whole, contents, start, monkeypatch, nodes, patience
):
    address = start(nodes).address
    # Without patience, a writing task gives its CPU back where a part is on the other node.
    monkeypatch.setattr(ray_engine, "PATIENCE", patience)
    pack_dataset(raw, tmp_path / "out", engine="ray", address=address, **OPTIONS)
    assert contents(tmp_path / "out") == whole
    report = pack_dataset(raw, engine="ray", address=address, dry_run=True, **OPTIONS)
    assert (report.samples, report.images, report.shards) == (700, 700, 10)


@pytest.mark.campaign
def test_a_node_that_dies_in_the_middle_costs_its_chunks_alone(
    tmp_path, raw, whole, contents, start
):
    cluster = start(3)
    out = tmp_path / "out"
    finished = []

    def kill():
        wait_until((out / "shard-000001.tar").exists)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        finished.append((out / "dataset.json").exists())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    report = pack_dataset(raw, out, engine="ray", address=cluster.address, **OPTIONS)
    killer.join()
    assert finished == [False]
    assert (report.samples, report.lost) == (700, 0)
    assert contents(out) == whole


@pytest.mark.campaign
def test_a_driver_that_was_killed_is_continued_by_the_same_command(
    tmp_path, raw, whole, contents, start
):
    address = start(2).address
    out = tmp_path / "out"
    command = [sys.executable, "-m", "datapipe", "pack", str(raw), str(out), "--engine", "ray"]
    command += ["--address", address, "--shard-size", "70", "--max-rejects", "9", "--json"]
    first = subprocess.Popen(command)
    wait_until((out / "shard-000002.tar").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (out / "dataset.json").exists()
    again = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert json.loads(again.stdout)["lost"] == 0
    assert contents(out) == whole


@pytest.mark.campaign
def test_shards_go_straight_to_a_url(tmp_path, raw, whole, start):
    pytest.importorskip("s3fs")
    address, staging = start(2).address, tmp_path / "staging"
    options = {"engine": "ray", "address": address, "staging": staging, **OPTIONS}
    with bucket_serving("bucket") as (proxy, client):
        options["storage_options"] = proxy.storage_options
        proxy.fault = lambda _, request: "expired" if "shard-000004.tar" in request.key else None
        with pytest.raises(StoreError, match="shard-000004"):
            pack_dataset(raw, "s3://bucket/x", **options)
        assert not list(staging.rglob("*.tar"))
        proxy.fault = lambda number, request: None
        client.pipe("bucket/x/.pack/attempt-of-a-task-that-was-given-up.tar", b"late")
        report = pack_dataset(raw, "s3://bucket/x", **options)
        assert 0 < report.inputs < 704
        assert pack_dataset(raw, "s3://bucket/x", **options).finished_before
        there = client.cat(client.find("bucket/x"))
    assert {name.removeprefix("bucket/x/"): data for name, data in there.items()} == {
        name: data for name, data in whole.items() if not name.startswith("columns/")
    }


def hook(name):
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {"worker_process_setup_hook": f"tests.pack.ray_hooks.{name}", "env_vars": path}


@pytest.mark.campaign
def test_an_input_that_kills_its_worker_is_rejected_and_no_other(
    tmp_path, raw, rejects, members, start
):
    address, out = start(1).address, tmp_path / "out"
    options = {"engine": "ray", "address": address, "limit": 400, "max_rejects": 9}
    report = pack_dataset(raw, out, runtime_env=hook("die_at_333"), **options)
    assert (report.samples, report.rejected, report.lost) == (399, 1, 1)
    assert rejects(out) == [
        {
            "source": "333.jpg",
            "reason": "the process of its task died in each of 3 attempts",
            "error": "WorkerCrashedError",
        }
    ]
    assert len(members(out)) == 399


@pytest.mark.campaign
def test_tasks_that_are_killed_for_lack_of_memory_are_not_tried_for_ever(tmp_path, raw, start):
    address = start(
        1, RAY_memory_usage_threshold="0.01", RAY_memory_monitor_refresh_ms="100"
    ).address
    options = {"engine": "ray", "address": address, "runtime_env": hook("linger")}
    with pytest.raises(PackError, match="killed for lack of memory on its node"):
        pack_dataset(raw, tmp_path / "out", **options)


@pytest.mark.campaign
def test_an_input_that_a_node_cannot_read_is_named_with_the_node_and_the_command_fails(
    tmp_path, raw, rejects, start
):
    address, out = start(1).address, tmp_path / "out"
    (tmp_path / "env.json").write_text(json.dumps(hook("miss_222")))
    command = [sys.executable, "-m", "datapipe", "pack", str(raw), str(out), "--engine", "ray"]
    command += ["--runtime-env", str(tmp_path / "env.json"), "--limit", "300"]
    done = subprocess.run(
        command, env={**os.environ, "RAY_ADDRESS": address}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Error: 1 input rejected because a node failed" in done.stderr
    (reject,) = rejects(out)
    assert reject["source"] == "222.jpg"
    assert reject["reason"].startswith("file is missing on the node ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "auto"}, "--address needs a Ray cluster; add --engine ray"),
        ({"runtime_env": {"env_vars": {}}}, "--runtime-env needs a Ray cluster"),
        ({"engine": "ray", "address": "127.0.0.1:9"}, "no Ray cluster can be used at 127.0.0.1:9"),
        ({"engine": "ray", "address": "ray://a:1"}, "`ray job submit` from elsewhere"),
        ({"engine": "ray", "address": "a:1", "workers": 2}, "number of workers .* is running"),
    ],
)
def test_options_of_clusters_are_refused_where_they_mean_nothing(
    tmp_path, make_folder, options, message
):
    with pytest.raises(PackError, match=message):
        pack_dataset(make_folder(tmp_path / "raw", 1), tmp_path / "out", **options)
