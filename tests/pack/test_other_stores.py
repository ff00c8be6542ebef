"""Data that no reader takes: the cause alone, and how to convert it."""

from pathlib import Path

import pyarrow as pa
import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError

from .raw_files import read_table


def said(raw, tmp_path):
    """Return the error of a pack, which lists no formats."""
    with pytest.raises(PackError) as caught:
        pack_dataset(raw, tmp_path / "out")
    assert "--format" not in str(caught.value)
    return str(caught.value)


def code(message):
    """Return the lines of Python in a message."""
    lines = [line[4:] for line in message.splitlines() if line.startswith("    ")]
    compile("\n".join(lines), "message", "exec")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("folders", "hidden", "expected"),
    [
        ("raw", "", "raw is empty"),
        ("raw/a/b", "", "raw is empty: its folders hold no files"),
        ("raw", ".gitkeep", "raw has only hidden files, such as .gitkeep, which are not read"),
    ],
)
def test_an_empty_folder_is_called_empty(tmp_path, folders, hidden, expected):
    (tmp_path / folders).mkdir(parents=True)
    if hidden:
        (tmp_path / "raw" / hidden).touch()
    remedy = "; give the folder that holds the images and texts"
    assert said(tmp_path / "raw", tmp_path).endswith(expected + remedy)


def test_of_one_image_the_folder_is_asked_for(tmp_path, put):
    path = put(tmp_path / "one", {"a.jpg": 0}) / "a.jpg"
    expected = f"give the folder that holds it: datapipe pack {tmp_path / 'one'} OUT"
    assert expected in said(path, tmp_path)
    pack_dataset(tmp_path / "one", tmp_path / "out")


STORES = read_table("other_stores.yaml")


@pytest.mark.parametrize("store", STORES, ids=lambda store: next(iter(store["files"])))
def test_files_of_other_libraries_are_named_with_a_way_to_convert_them(tmp_path, raw_files, store):
    raw = raw_files.write(tmp_path / "raw", {"README.md": "x", **store["files"]})
    message = said(raw, tmp_path)
    assert f"raw holds {store['holds']}, which are not read. Convert them first:\n" in message
    assert message.endswith("Then pack the folder `raw`.")
    assert [line for line in store["lines"] if line not in code(message)] == []


@pytest.mark.parametrize("name", ["data.h5", "index.json", "data.mdb"])
def test_a_file_of_another_library_is_named_too(tmp_path, raw_files, name):
    files = next(store["files"] for store in STORES if name in store["files"])
    raw = raw_files.write(tmp_path / "raw", {name: files[name]})
    assert "Convert them first" in said(raw / name, tmp_path)


@pytest.mark.parametrize("files", [False, True])
def test_the_lines_for_arrow_files_give_a_folder_that_packs(tmp_path, jpeg, monkeypatch, files):
    rows = [{"image": {"bytes": jpeg(n), "path": None}, "caption": "a cat"} for n in range(2)]
    table = pa.Table.from_pylist(rows)
    home = tmp_path / "saved"
    home.mkdir()
    make = pa.ipc.new_file if files else pa.ipc.new_stream
    with pa.OSFile(str(home / "a.arrow"), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table)
    message = said(home, tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(code(message))
    assert pack_dataset(Path("raw"), tmp_path / "out").samples == 2


def test_the_lines_for_a_saved_dataset_give_a_folder_that_packs(tmp_path, jpeg, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = [{"image": {"bytes": jpeg(n), "path": None}, "caption": "a cat"} for n in range(2)]
    features = datasets.Features(image=datasets.Image(), caption=datasets.Value("string"))
    saved = datasets.Dataset.from_list(rows, features)
    saved.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=saved).save_to_disk(tmp_path / "split")
    for name in ("one", "split"):
        folder = tmp_path / f"in-{name}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        exec(code(said(tmp_path / name, tmp_path)))
        assert pack_dataset(Path("raw"), tmp_path / f"out-{name}").samples == 2
