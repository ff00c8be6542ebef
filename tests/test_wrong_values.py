"""Every public argument given wrong values: it is refused by name with a remedy, or it works.

Arguments are found from signatures, so a new one is tried without a change here. A run tries a few
values each; `DATAPIPE_WRONG_VALUES=all` tries all, and a number tries others.
"""

import inspect
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import datapipe
import datapipe.decode.batched as batched
from datapipe.mixture import MixtureDataset
from datapipe.profile.job import profile_loader
from tests.waiting import Overdue, limited

SECONDS = 5  # on an idle machine
PATIENCE = 60  # times as long, where other tests run beside
TRIED = 3  # values for each argument, where not all are
MADE_BY_US = {
    *("ConvertReport", "CopyReport", "DatasetDiff", "Loader", "Loader.count", "ModelCheck"),
    *("IndexedField", "PackReport", "TuneResult"),
    *("DatasetSummary", "InspectedMember", "InspectedSample"),
    *("Finding", "RepairReport", "VerifyReport"),
    *("WebDatasetSource", "WebDatasetSource.share"),
}
OF_FUNCTIONS = {"clock", "sleep", "watch", "on_trial", "train", "step", "say"}
"""Arguments that any function is right for."""

JUDGED_LATER = {
    ("make_loader", "path"),  # a dict is a mixture
    ("preview", "path"),
    ("webdataset_source", "path"),
    ("pack_dataset", "max_pixels"),
    ("tune_workers", "make"),
}
"""Right by their type; what comes of them is refused in other words."""

OF_TIME = {"budget", "seconds", "step_time"}


def wrong_values():
    """New values of many types, because a call may use up or change what it is given."""
    return [
        *(None, True, 0, -1, 10**6, 10**30, -(10**30), 1.5, float("nan"), float("inf"), 1j),
        *("", "nonsense", "a\0b", "a" * 5000, "a\ud800", b"", b"auto"),
        *([], ["a", 1], [[1, 2], [3]], {}, {"a": 1}, {1: 2}, (), {1, "b"}),
        *(object(), lambda *args, **kwargs: None, int, (number for number in range(3))),
        *(Path("no/such/file"), Path("a\0b"), Path("a" * 5000)),
        *(np.int64(3), np.float32(2.5), np.bool_(True), np.array(3), np.array([1, 2])),
        *(np.array("x"), torch.tensor(3), torch.tensor(True), torch.tensor([1.5, 2.5])),
    ]


def public():
    """Callables by name: what `datapipe` exports with its methods, and what docs name beside it."""
    found: dict[str, Any] = {}
    for name in datapipe.__all__:
        thing = getattr(datapipe, name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        if name not in MADE_BY_US:
            found[name] = thing
        if inspect.isclass(thing):
            methods = inspect.getmembers_static(thing)
            found |= {
                f"{name}.{method}": getattr(thing, method)
                for method, member in methods
                if (not method.startswith("_") or method == "__call__")
                and f"{name}.{method}" not in MADE_BY_US
                and (inspect.isfunction(member) or isinstance(member, classmethod))
            }
    for name in ("normalize_batch", "resize_batch"):
        found[f"batched.{name}"] = getattr(batched, name)
    found["plan.pack_lengths"] = datapipe.plan.pack_lengths
    found["plan.PlanOptions"] = datapipe.plan.PlanOptions
    found["profile_loader"] = profile_loader
    return found


def arguments(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind not in kinds and p.name != "self"]


CASES = [(name, argument) for name, thing in public().items() for argument in arguments(thing)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory, make_folder):
    out = tmp_path_factory.mktemp("wrong") / "shards"
    datapipe.pack_dataset(make_folder(out.parent / "raw"), out, workers=1)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    record = {"messages": turns, "score": 1}
    (out.parent / "chats.json").write_text(json.dumps([record]))
    datapipe.pack_dataset(out.parent / "chats.json", out.parent / "chats", workers=1)
    (out.parent / "tars").mkdir()
    for tar in out.glob("*.tar"):
        (out.parent / "tars" / tar.name).hardlink_to(tar)
    return out


@cache
def state_of(shards):
    return datapipe.make_loader(shards, batch_size=2, epochs=None, num_workers=0).state_dict()


def given_for(name, shards, where):
    """Arguments of a call that is right; those of `make_loader` and of a tokenizer are small."""
    if name == "check_model":
        from .models.checkpoints import CASES

        processor = CASES["llava-hf/llava-1.5-7b-hf"].make()
        return {"model": processor, "dataset": shards, "samples": 1}
    vocabulary = Tokenizer(models.WordLevel({"a": 0, "<image>": 1, "</s>": 2}, unk_token="a"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    pixels = torch.zeros((2, 3, 8, 8), dtype=torch.uint8)

    def make(**options):
        options = {"num_workers": 0, "prefetch_factor": None} | options
        return datapipe.make_loader(shards, batch_size=2, epochs=None, **options)

    packing = {"raw": shards.parent / "raw", "out": where / "out", "workers": 1}
    return {
        "make_loader": {"path": shards, "batch_size": 2, "num_workers": 0},
        "preview": {"path": shards, "output": where / "preview.html", "samples": 2},
        "pack_dataset": packing,
        "pack_arrays": {"raw": packing["raw"], "arrays": where / "arrays", "workers": 1},
        "convert_dataset": {"shards": shards, "arrays": where / "arrays", "workers": 1},
        "select_samples": {"dataset": shards, "out": where / "out", "number": 3},
        "split_dataset": {"dataset": shards, "out": where / "out", "val": 0.5},
        "merge_datasets": {"datasets": [shards], "out": where / "out"},
        "dedup_dataset": {"dataset": shards, "out": where / "out"},
        "diff_datasets": {"a": shards, "b": shards},
        "index_fields": {"shards": shards.parent / "chats", "fields": "score"},
        "index_shards": {"folder": shards.parent / "tars"},
        "summarize_dataset": {"dataset": shards},
        "inspect_sample": {"dataset": shards, "which": 0},
        "verify_dataset": {"dataset": shards, "workers": 1},
        "repair_dataset": {"dataset": shards, "out": where / "out"},
        "PackSpec": {"tokens": 64},
        "unpack": {"outputs": torch.zeros(1, 4, 2), "cu_seq_lens": torch.tensor([0, 4])},
        "TextSpec": {"tokenizer": vocabulary, "template": "caption"},
        "CacheSpec": {"memory": "1MB", "disk": where},
        "ImageSpec.preset": {"name": "clip"},
        "Mixture": {"children": (MixtureDataset(name="a", path="a", weight=1),)},
        "Mixture.of": {"mixture": {"a": 1}},
        "tune_workers": {
            "make": lambda **_: [torch.zeros(2)] * 9,
            "num_workers": (0,),
            "budget": 0.3,
        },
        "Monitor.__call__": {"loader": [1, 2]},
        "Monitor.headroom": {"loader": [1, 2] * 40, "step": lambda _: None, "steps": 10},
        "Monitor.trace": {"path": where / "trace.json"},
        "Monitor.save": {"path": where / "page.html"},
        "webdataset_source": {"path": shards, "batch_size": 2},
        "WebDatasetSource.track": {"batches": [1, 2]},
        "WebDatasetSource.set_epoch": {"epoch": 1},
        "WebDatasetSource.load_state_dict": {"state": state_of(shards)},
        "Loader.set_epoch": {"epoch": 1},
        "Loader.load_state_dict": {"state": state_of(shards)},
        "batched.resize_batch": {"images": pixels, "height": 4, "width": 4},
        "batched.normalize_batch": {"images": pixels, "mean_std": None, "dtype": torch.float32},
        "plan.pack_lengths": {"lengths": [3, 4, 5], "capacity": 10},
        "plan.PlanOptions": {"shuffle": True, "seed": 0},
        "profile_loader": {"make": make, "shards": "shards", "seconds": 0.1},
    }.get(name, {})


def use(name, made):
    """Take from a loader what comes first: what was not refused has to work."""
    if name == "make_loader":
        with made:
            next(iter(made))
    elif name == "webdataset_source":
        next(iter(made))


@pytest.mark.scaled
@pytest.mark.parametrize(("name", "argument"), CASES, ids=lambda part: part)
def test_a_wrong_value_is_refused_by_name_or_works(name, argument, shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faults = []
    for number in chosen(name, argument):
        value = wrong_values()[number]
        said = repr(value)[:40]
        if fault := try_value(name, argument, value, shards, tmp_path / str(number)):
            faults.append(f"{argument}={said}: {fault}")
    assert not faults, "\n".join(faults)


def chosen(name, argument):
    """The wrong values that a run tries, by number."""
    values = wrong_values()
    numbers = [
        number
        for number, value in enumerate(values)
        if argument not in OF_FUNCTIONS or not callable(value)
    ]
    wanted = os.environ.get("DATAPIPE_WRONG_VALUES", "0")
    if wanted == "all":
        return numbers
    start = TRIED * (CASES.index((name, argument)) + len(CASES) * int(wanted))
    return [numbers[(start + number) % len(numbers)] for number in range(TRIED)]


def try_value(name, argument, value, shards, where):
    """What is wrong with how a value is met; None if nothing is."""
    where.mkdir()
    given = given_for(name, shards, where)
    if argument in OF_TIME and type(value) is int and value > SECONDS:
        return None  # it takes as long as it was told
    function = public()[name]
    owners = {
        "Monitor": datapipe.Monitor,
        "Loader": lambda: datapipe.make_loader(shards, batch_size=2, num_workers=0),
        "WebDatasetSource": lambda: datapipe.webdataset_source(shards, batch_size=2),
    }
    owner, _, method = name.partition(".")
    if method and owner in owners:
        function = getattr(owners[owner](), method)
    try:
        with limited(SECONDS * PATIENCE):
            use(name, function(**{**given, argument: value}))
    except Overdue:
        return f"{SECONDS * PATIENCE} seconds"
    except datapipe.DatapipeError as error:
        said = str(error)
        if len(said) > 2000:  # the list of formats has 1,600
            return f"{len(said):,} letters: {said[:200]}"
        named = argument in said or argument.replace("_", "-") in said
        named = named or (name, argument) in JUDGED_LATER
        if not named and str(value)[:20] not in said and repr(value)[:20] not in said:
            return f"not named: {said[:200]}"
        return None
    except Exception as error:
        return f"raw {type(error).__name__}: {str(error)[:300]}"
    return None
