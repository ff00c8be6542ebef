"""The notebook of the examples, run from its first cell to its last."""

import json
import shutil
from pathlib import Path

import pytest

from tests.imports import IMPORTS

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    (tmp_path / "tools").symlink_to(ROOT / "tools")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples/first_steps.ipynb", tmp_path / "examples")
    monkeypatch.setenv("PYTHONPATH", IMPORTS["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(tmp_path / "examples/first_steps.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path / "examples")}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "".join(o.get("text", "") for cell in code for o in cell.outputs)
    assert "240 samples" in printed
    assert "2 rejected" in printed
    assert [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    outputs = [o for cell in code for o in cell.outputs if o.get("name") == "stderr"]
    told = "".join(o["text"] for o in outputs)  # of a slow step also a line of progress
    assert not [word for word in ("Warning", "Error", "Traceback") if word in told], told


def test_the_notebook_is_kept_without_outputs():
    notebook = json.loads((ROOT / "examples/first_steps.ipynb").read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
