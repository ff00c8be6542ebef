"""The kernel of attention by length, from a table that the benchmark wrote."""

import json
from pathlib import Path

import pytest
import torch

import benchmarks.attention.__main__ as attention
from examples.vlm import train as program
from examples.vlm.model.attention import Segments, Table, choose_by

from .attend import make_segments
from .vlm_runs import PACKED, fit

CPU = torch.device("cpu")


def write(path, rows, mixed, **more):
    """A table in which the kernels of each length are named fastest first."""

    def results(names, endings):
        missing = {"name": "flash", "runs": [], "missing": "not installed"}
        return [
            *(
                {"name": name + ending, "runs": [{"samples": 100, "seconds": number + 1}]}
                for number, name in enumerate(names.split())
                for ending in endings
            ),
            missing,
        ]

    settings = {
        "rows of one length": [
            {"length": n, "results": results(k, ("",))} for n, k in rows.items()
        ],
        "captions and conversations": [
            {"length": n, "results": results(k, (" packed", " padded"))} for n, k in mixed.items()
        ],
    }
    content = {"machine": {"gpu": "not used"}, "rehearsal": False, "settings": settings} | more
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def table(tmp_path):
    rows = {128: "sdpa plain split", 1024: "split plain sdpa"}
    mixed = {128: "plain split", 1024: "split plain", 4096: "sdpa split"}
    return Table.read([write(tmp_path / "table.json", rows, mixed)])


def test_the_fastest_at_the_nearest_length_of_its_setting_is_taken(table):
    def packs(length):
        return table.fastest(make_segments([length, 1], True))

    def equal(length):
        return table.fastest(Segments.of_rows(2, length, causal=True, device=CPU))

    assert [packs(n) for n in (1, 128, 361, 363, 2000, 2100, 99_999)] == [
        *("plain", "plain", "plain", "split", "split", "sdpa", "sdpa")
    ]
    assert [equal(n) for n in (64, 300, 400, 8000)] == ["sdpa", "sdpa", "split", "split"]


def test_non_causal_attention_has_a_table_of_its_own(tmp_path):
    causal = write(tmp_path / "causal.json", {128: "sdpa"}, {128: "plain"})
    other = write(tmp_path / "other.json", {4096: "split"}, {}, causal=False)
    both = Table.read([causal, other])
    rows = Segments.of_rows(2, 128, causal=True, device=CPU)
    assert both.fastest(rows) == "sdpa"
    assert both.fastest(rows._replace(causal=False)) == "split"
    assert both.fastest(make_segments([100, 28], False)) == "plain"


def test_kernels_that_cannot_train_here_are_left_out(tmp_path):
    path = write(tmp_path / "t.json", {128: "flex sdpa", 256: "flex"}, {128: "flex split"})
    left = choose_by(Table.read([path]), CPU, torch.float32)
    assert left.kernels == ["sdpa", "split"]
    assert left.fastest(Segments.of_rows(2, 256, causal=True, device=CPU)) == "sdpa"
    path = write(tmp_path / "t.json", {128: "flex"}, {})
    with pytest.raises(ValueError, match="flex has no gradients on the CPU"):
        choose_by(Table.read([path]), CPU, torch.float32)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"machine": {"gpu": "NVIDIA A100"}}, "measured on cuda, and this run is on cpu"),
        ({"settings": {}}, "no kernel ran in it"),
        ({"machine": None}, "this is no table"),
        ({"dropout": 0.1}, "was measured with dropout"),
    ],
    ids=str,
)
def test_a_table_that_says_nothing_of_this_run_is_refused(tmp_path, more, reason):
    path = write(tmp_path / "table.json", {128: "sdpa"}, {}, **more)
    with pytest.raises(ValueError, match=reason) as error:
        choose_by(Table.read([path]), CPU, torch.float32)
    assert "python -m benchmarks.attention" in str(error.value)


def test_a_table_that_the_benchmark_writes_on_a_cpu_is_one(tmp_path):
    path = tmp_path / "table.json"
    line = ["--device", "cpu", "--lengths", 16, "--rounds", 1, "--tokens", 32, "--heads", 1]
    line += ["--size", 8, "--threads", 1, "--kernels", "split", "plain", "--json", path]
    attention.main(list(map(str, line)))
    assert set(choose_by(Table.read([path]), CPU, torch.float32).kernels) == {"split", "plain"}
    assert json.loads(path.read_text())["aims"] == []
    attention.main([*map(str, line), "--rehearse"])
    with pytest.raises(ValueError, match="figures of a rehearsal mean nothing"):
        Table.read([path])


def test_the_documented_table_is_one():
    table = Table.read([Path("benchmarks/results/attention-cpu.json")])
    assert {row.length for row in table.rows} == {256, 512, 1024, 2048, 4096, 8192}
    assert choose_by(table, CPU, torch.float32).fastest(make_segments([900, 100], True)) == "split"


@pytest.mark.usefixtures("small_model")
def test_training_takes_the_kernel_of_the_table(shards, tmp_path, monkeypatch, capfd):
    used = set()
    kernels = program.choose_by.__globals__["KERNELS"]
    for name in ("plain", "sdpa", "split"):

        def note(*arguments, name=name, kernel=kernels[name]):
            used.add((name, arguments[3].causal))
            return kernel(*arguments)

        monkeypatch.setitem(kernels, name, note)
    path = write(tmp_path / "table.json", {16: "sdpa"}, {100: "plain"})
    table = fit(shards, *PACKED, "--steps", 3, "--attention-table", path)
    assert used == {("sdpa", False), ("plain", True)}
    assert f"attention: by length from {path}" in capfd.readouterr().err
    order = fit(shards, *PACKED, "--steps", 3)
    assert table.losses == pytest.approx(order.losses, rel=1e-4)
