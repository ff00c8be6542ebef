"""Nodes of torchdata over datapipe go on with the very next sample."""

import itertools
import json
import sys
from pathlib import Path

import pytest

import datapipe

pytest.importorskip("torchdata.nodes")
example = pytest.importorskip("examples.torchdata_nodes")

SAMPLES = 25


def keys(batch):
    return [key for key, _ in batch]


def endless(pipeline):
    while True:
        yield from map(keys, pipeline)


@pytest.mark.parametrize("steps", [0, 1, 5, 7, 8, 11])
def test_raw_samples_resume_behind_mapped_batched_and_prefetched_ones(shards, steps):
    source = datapipe.webdataset_source(shards, batch_size=4)
    expected = []
    for epoch in range(2):
        source.set_epoch(epoch)
        found = [sample["__key__"] for sample in source]
        expected += [found[at : at + 4] for at in range(0, SAMPLES, 4)]
    begun, resumed = example.make_pipeline(shards), example.make_pipeline(shards)
    seen = list(itertools.islice(endless(begun), steps))
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert seen + list(itertools.islice(endless(resumed), 14 - steps)) == expected


def test_the_program_goes_on_with_the_next_batch(shards, tmp_path, capsys):
    def lines(*options):
        example.main([str(shards), *map(str, options)])
        return capsys.readouterr().out.splitlines()

    state = ("--state", tmp_path / "state.json")
    assert lines("--steps", 3, *state) + lines("--steps", 5, *state) == lines("--steps", 8)


def test_without_torchdata_the_program_says_what_to_install(monkeypatch):
    import runpy

    monkeypatch.setitem(sys.modules, "torchdata", None)
    with pytest.raises(SystemExit, match="pip install torchdata"):
        runpy.run_path(str(Path(example.__file__)))
