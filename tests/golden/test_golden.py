"""Batches, plans and files of other versions are what they were, bit for bit.

`digests.json` has a digest of every key of every batch of what `configurations.yaml` lists. They
are recorded by `python -m tests.golden.record`, and change with nothing but

- what a batch is: another order, another resize, another token. The changelog says so;
- a new configuration;
- pixels alone, with another version of a decoder (simplejpeg, Pillow, DALI) or of torch's resize:
  versions are recorded too, and where they differ the test is skipped and says for which.

They do not depend on the processor: JPEGs are decoded exactly with every set of SIMD instructions,
torch resizes bytes with integer weights, and normalisation is two float32 roundings. DALI's
pixels may. Nor do they depend on the number of workers, which is another one here than where they
were recorded.

`data/` and `states/` were written once, and are opened and resumed as they are.
"""

import json
from contextlib import closing
from dataclasses import replace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

import datapipe

from ..remote.server import serving
from .configurations import CASES, PLANS, WAYS, Case, another, open_loader
from .data import CONVERTED, DATA, SHARD_SIZE, Data, conversation_tokens
from .digest import DIGESTS, PIXELS, difference, digest, run_case, run_plan, state_path, versions

GOLDEN: dict[str, Any] = json.loads(DIGESTS.read_text("utf-8"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return Data(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def served(data):
    pytest.importorskip("aiohttp")
    with serving(data.shards) as server:
        data.served = server.url
        yield data


def check(found, name):
    """Assert that the batches of a case are those that were recorded."""
    golden = GOLDEN["batches"][name]
    differs = difference(found, golden)
    if differs is None:
        return
    then = GOLDEN["versions"]
    others = [
        f"{package} {now} (recorded with {then.get(package)})"
        for package, now in versions(dali=CASES[name].options.get("decoder") == "dali").items()
        if now != then.get(package)
    ]
    if others and difference(found, golden, but=PIXELS) is None:
        pytest.skip(f"pixels of {name!r} are others, and so are {', '.join(others)}")
    pytest.fail(f"batches of {name!r} changed: {differs}", pytrace=False)


def test_every_configuration_is_recorded():
    assert GOLDEN["batches"].keys() == CASES.keys()
    assert GOLDEN["plans"].keys() == PLANS.keys()


@pytest.mark.parametrize("name", CASES)
def test_batches_are_those_recorded(data, tmp_path, name):
    case = CASES[name]
    if case.needs is not None:
        pytest.importorskip(case.needs)
    check(run_case(data, case, tmp_path, num_workers=2)[0], name)


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, case in CASES.items() for way in case.same]
)
def test_other_ways_give_the_batches_recorded(data, tmp_path, request, name, way):
    if WAYS[way].get("data") == "served":
        request.getfixturevalue("served")
    check(run_case(data, another(CASES[name], way), tmp_path, num_workers=1)[0], name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stop is not None])
def test_saved_states_go_on_with_the_batches_recorded(data, tmp_path, name):
    state = json.loads(state_path(name).read_text("utf-8"))
    check(run_case(data, CASES[name], tmp_path, num_workers=1, state=state)[0], name)


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_those_recorded(data, name):
    assert run_plan(data, PLANS[name]) == GOLDEN["plans"][name]


def test_a_disk_cache_serves_every_sample(data, tmp_path):
    cache = datapipe.CacheSpec(disk=data.cache, disk_size="16MB")
    case = replace(CASES["stretch"], options=CASES["stretch"].options | {"cache": cache})
    with closing(open_loader(data, case, tmp_path, num_workers=1)) as loader:
        check(digest([("rank 0", loader)]), "stretch")
        assert loader.stats()["source"].hits == 0
        assert loader.stats()["disk"].hits > 80


@pytest.mark.parametrize("source", ["shards", "arrays"])
def test_what_was_derived_is_still_good(tmp_path, source):
    """Columns, token counts and filters are opened, not made anew."""
    data = Data(tmp_path / "data")
    before = _files(getattr(data, source))
    options = {"text": conversation_tokens(), "image": None, "where": "width > 40"}
    case = Case(options=options, data=source)
    with closing(open_loader(data, case, tmp_path, num_workers=1)) as loader:
        assert len(list(loader)) == 6
    assert _files(getattr(data, source)) == before


def _files(folder):
    """Inodes, which change where a file is replaced, and contents."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def test_packing_gives_the_shards_that_it_gave(data, tmp_path):
    datapipe.pack_dataset(data.raw / "chat", tmp_path / "out", shard_size=SHARD_SIZE, workers=1)
    with ZipFile(DATA / "shards.zip") as golden:
        names = sorted(name for name in golden.namelist() if name.endswith(".tar"))
        assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == names
        for name in names:
            assert (tmp_path / "out" / name).read_bytes() == golden.read(name), name


def test_converting_gives_the_arrays_that_it_gave(data, tmp_path):
    text = conversation_tokens()
    datapipe.convert_dataset(data.shards, tmp_path / "out", image=CONVERTED, text=text, workers=1)
    names = sorted(path.name for path in data.arrays.glob("*.npy"))
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == names
    for name in names:
        now, then = (np.load(folder / name) for folder in (tmp_path / "out", data.arrays))
        assert now.dtype == then.dtype, name
        assert np.array_equal(now, then), name
