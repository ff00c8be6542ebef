"""Every public function and class has an example in its docstring, and all examples run."""

import doctest
import importlib
import inspect
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import datapipe
from tools.train_tokenizer import train

ROOT = Path(__file__).parents[2]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def public():
    """Yield the functions and classes that users call, with their names."""
    for module in (datapipe, datapipe.plan, datapipe.testing):
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if inspect.isfunction(value)
        ]
        for name in names:
            value = getattr(module, name)
            if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
                yield f"{module.__name__}.{name}", value


def modules_with_examples():
    """Yield the modules whose docstrings hold examples."""
    for path in sorted((ROOT / "datapipe").rglob("*.py")):
        if ">>>" in path.read_text("utf-8"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_folder):
    """Return a folder with what examples name: photos, shards of them, a tar, a tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    make_folder(folder / "photos")
    datapipe.pack_dataset(folder / "photos", folder / "packed", workers=1)
    (folder / "tars").mkdir()
    shutil.copy(folder / "packed/shard-000000.tar", folder / "tars/000.tar")
    train(folder / "packed", 300).save(str(folder / "tokenizer.json"))
    (folder / "tiny-qwen2-vl").mkdir()
    shutil.copy(folder / "tokenizer.json", folder / "tiny-qwen2-vl")
    (folder / "tiny-qwen2-vl/config.json").write_text('{"model_type": "qwen2_vl"}')
    (folder / "tiny-qwen2-vl/preprocessor_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", [name for name, _ in public()])
def test_public_functions_and_classes_have_an_example(name):
    assert "Examples:\n" in (inspect.getdoc(dict(public())[name]) or "")


@pytest.mark.parametrize("module", [*modules_with_examples()])
def test_examples_run(module, data, tmp_path, monkeypatch):
    imported = importlib.import_module(module)
    known = vars(imported) | {"datapipe": datapipe, "torch": torch, "np": np, "Path": Path}
    tests = [
        test
        for test in doctest.DocTestFinder().find(imported, module, extraglobs=known)
        if test.examples
    ]
    assert tests, "the examples stand where doctest does not see them"
    for number, test in enumerate(tests):
        folder = shutil.copytree(data, tmp_path / str(number))
        if "pack" not in test.name.rpartition(".")[2]:
            (folder / "packed").rename(folder / "shards")
        monkeypatch.chdir(folder)
        output = []
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=output.append)
        assert not output, "".join(output)
