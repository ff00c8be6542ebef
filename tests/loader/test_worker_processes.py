"""Worker processes: the same batches as threads, named failures, and nothing left behind."""

import gc
import logging
import threading

import pytest
import torch

import datapipe
from datapipe import DatapipeError, DecodeError, DeviceSpec, PlanError
from datapipe.loader.batch.buffer_pool import can_pin
from datapipe.testing import assert_resumes_exactly, assert_same_batches
from tests.waiting import wait_until
from tests.workers.process_list import left, shared_memory, worker_processes

pytestmark = pytest.mark.usefixtures("no_processes_left")


def test_resuming_is_exact_also_between_threads_and_processes(make):
    def make_either(num_workers, **more):
        kind = "processes" if num_workers == 2 else "threads"
        return make(num_workers=num_workers, workers=kind, **more)

    assert_resumes_exactly(make_either, num_workers=(1, 2), world_sizes=(1, 2), stops=(0.0, 0.4))


def test_workers_survive_epochs_breaks_and_loaded_states(make, make_processes):
    expected = list(make(shuffle=False))
    loader = make_processes()
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 3:
            state = loader.state_dict()
            break
    workers = worker_processes()
    assert len(workers) == 2
    assert_same_batches(loader, expected, "after a break")
    loader.load_state_dict(state)
    assert_same_batches(batches + list(loader), expected, "after loading a state")
    assert worker_processes() == workers
    loader.close()
    assert left(worker_processes()) == set()


def test_workers_start_with_the_first_batch_and_end_with_their_iterator_if_so_asked(make_processes):
    loader = make_processes(workers=datapipe.WorkerSpec("processes", persistent=False))
    iterator = iter(loader)
    loader.set_epoch(3)
    assert left(worker_processes()) == set()
    assert loader.state_dict()["epoch"] == 3
    next(iterator)
    list(loader)
    assert left(worker_processes()) == set()
    for _ in loader:
        wait_until(lambda: len(worker_processes()) == 2)
        break
    gc.collect()
    assert left(worker_processes()) == set()


def test_memory_is_used_again_and_given_back(make, make_processes):
    loader = make_processes(batch_size=2, epochs=4)
    seen = {batch["pixel_values"].data_ptr() for batch in loader}
    assert len(seen) <= 2 * 2 + 2
    held = list(loader)
    assert_same_batches(held, make(batch_size=2, epochs=4, shuffle=False))
    while_held = shared_memory()
    valid = [batch["valid"] for batch in held]  # must not hold the images
    del held
    for _ in loader:
        pass
    assert shared_memory() < while_held / 4
    assert sum(int(flags.sum()) for flags in valid) == 4 * 37
    loader.close()


def test_a_worker_logs_to_the_parent_and_has_one_thread_of_torch(
    make_processes, user_module, caplog
):
    module = user_module(
        """
        import logging, torch
        def note(sample, generator):
            logging.getLogger("datapipe.mine").warning("saw %s", sample["key"])
            return sample | {"text": str(torch.get_num_threads())}
        """
    )
    before, random_state = torch.get_num_threads(), torch.get_rng_state()
    batches = list(make_processes(transform=module.note, drop_last=True))
    notes = [r.getMessage() for r in caplog.records if r.name == "datapipe.mine"]
    assert notes == [f"saw {number:09}" for number in range(36)]
    assert {text for batch in batches for text in batch["text"]} == {"1"}
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_without_an_accelerator_pin_memory_is_a_warning(make, caplog, workers):
    can_pin.cache_clear()
    for _ in range(2):
        batches = list(make(workers=workers, device=DeviceSpec(pin_memory=True)))
        assert len(batches) == 10
        assert not batches[0]["pixel_values"].is_pinned()
    can_pin.cache_clear()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "pin_memory=True has no effect: torch finds no accelerator"
    ]


def test_batches_are_copied_to_page_locked_memory_in_a_thread(
    make, make_processes, damaged, monkeypatch
):
    # Without an accelerator nothing can be pinned; here it is a copy.
    threads = set()

    def pin_memory(tensor):
        threads.add(threading.get_ident())
        return tensor.clone()

    monkeypatch.setattr("datapipe.loader.factories.can_pin", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    pinned = list(make_processes(device=DeviceSpec(pin_memory=True), epochs=2))
    assert_same_batches(pinned, make(shuffle=False, epochs=2))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    options = {"batch_size": 2, "shuffle": False, "workers": "processes"}
    loader = datapipe.make_loader(damaged, device=DeviceSpec(pin_memory=True), **options)
    batches = iter(loader)
    keys = [next(batches)["key"] for _ in range(3)]
    assert keys == [[f"{number:09}", f"{number + 1:09}"] for number in (0, 2, 4)]
    with pytest.raises(DecodeError, match="000000006"):
        next(batches)


def test_functions_that_cannot_be_imported_are_refused_at_once(make_processes):
    with pytest.raises(PlanError, match=r"lambda.*top of a module"):
        make_processes(transform=lambda sample, _: sample)


def test_a_worker_that_is_killed_is_told_from_other_errors(
    make, make_processes, user_module, tmp_path
):
    once = tmp_path / "once"
    module = user_module(
        f"""
        import os, signal
        def killed(sample, generator):
            if sample["key"].endswith("9") and not os.path.exists({str(once)!r}):
                open({str(once)!r}, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return sample
        """
    )
    loader = make_processes(transform=module.killed)
    with pytest.raises(
        DatapipeError, match=r"ended by SIGKILL at the batch from sample.*memory.*fewer num_workers"
    ):
        list(loader)
    assert left(worker_processes()) == set()
    assert_same_batches(loader, make(shuffle=False), "with new workers")


@pytest.mark.parametrize(("kind", "seconds"), [("threads", 0.1), ("processes", 1.5)])
def test_a_stalled_worker_is_named_with_sample_and_stage(
    make_processes, user_module, tmp_path, monkeypatch, caplog, kind, seconds
):
    seen = tmp_path / "seen"
    module = user_module(
        f"""
        import os, time
        def wait(sample, generator):
            while sample["key"] == "000000002" and not os.path.exists({str(seen)!r}):
                time.sleep(0.01)
            return sample
        """
    )

    def release(record):
        seen.touch()
        return True

    monkeypatch.setattr("datapipe.loader.workers.executor.logger.filters", [release])
    workers = datapipe.WorkerSpec(kind, stall_warning=seconds)
    list(make_processes(transform=module.wait, workers=workers, batch_size=8))
    assert "sample 000000002 of shard-000000.tar in stage 'transform'" in caplog.text


@pytest.mark.campaign
@pytest.mark.flaky(reruns=2, reruns_delay=2)
def test_without_a_cluster_the_error_says_how_to_name_one(make, monkeypatch):
    """The clusters of other modules ended with them."""
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(PlanError, match="found no Ray cluster; set RAY_ADDRESS"):
        make(workers="ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(PlanError, match=r"workers='ray': no Ray cluster can be used at 127\.0"):
        make(workers="ray")
    assert make(workers="ray", num_workers=0).options.num_workers == 0  # the caller's thread
