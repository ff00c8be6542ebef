"""`datapipe plan mixture.yaml`: it says what each dataset gives, and it is right."""

import json
from collections import Counter
from itertools import takewhile

import pytest
import yaml

import datapipe
from datapipe.cli.mixture import datasets_table, phase_lines
from datapipe.loader.plan_report import DatasetPlan, LeftOut, MixturePlan, Phase

from .conftest import SAMPLES

TEXT = "text: {{tokenizer: {tokenizer}, template: chatml, image_tokens: 8}}\n"
MIXTURE = """
text: {{tokenizer: {tokenizer}, template: chatml, image_tokens: 8}}
datasets:
  shards/: 50%
  rest:
    weight: 50%
    datasets:
      short:
        path: shards
        where: text_tokens < 120
        limit: 20
        repeat: 1x
      long: {{path: shards, limit: 10, repeat: 2x}}
{more}
"""
VALIDATION = "validation:\n  datasets:\n    held: {path: shards, limit: 6}\n"


@pytest.fixture
def write(shards, tokenizer):
    """Writes a file of a mixture beside the dataset."""

    def make(more="", text=MIXTURE):
        path = shards.parent / "mixture.yaml"
        path.write_text(text.format(tokenizer=tokenizer, more=more))
        return path

    return make


def rows_of(stdout):
    """Cells of the table of datasets, by name."""
    lines = stdout.partition("\n  dataset ")[2].splitlines()[1:]
    rows = (line.split() for line in takewhile(lambda line: line.startswith("  "), lines))
    return {name: cells for name, *cells in rows}


def keywords(options):
    """Options of the command as arguments of `make_loader`."""
    return {options[0][2:].replace("-", "_"): options[1]}


@pytest.mark.parametrize(
    "options", [("--pack", 512), ("--batch-size", 3), ("--max-tokens", 900)], ids=str
)
def test_figures_of_each_dataset_are_those_of_its_batches(run, read, write, options):
    path = write()
    report = read(run("plan", path, *options, "--epoch", 1, "--json"))
    loader = datapipe.make_loader(path, image=None, meta=("dataset", "valid"), **keywords(options))
    loader.set_epoch(1)
    samples, tokens, slots = (Counter[str]() for _ in range(3))
    for batch in loader:
        padded = "attention_mask" in batch
        lengths = batch["attention_mask"].sum(1) if padded else batch["cu_seq_lens_q"].diff()
        for name, length, valid in zip(batch["dataset"], lengths, batch["valid"], strict=True):
            samples[name] += int(valid)
            tokens[name] += int(length * valid)
            slots[name] += int(batch["input_ids"].shape[1] * valid)
    found = {each["name"]: each for each in report["mixture"]["datasets"]}
    assert {name: each["drawn"] for name, each in found.items()} == +samples
    assert {name: each["tokens"] for name, each in found.items()} == +tokens
    for name, each in found.items():
        assert each["share"] == pytest.approx(loader.plan.shares()[name])
        assert each["token_share"] == pytest.approx(tokens[name] / tokens.total())
        padding = None if options[0] == "--pack" else 1 - tokens[name] / slots[name]
        assert each["padding"] == pytest.approx(padding)
    assert found["long"]["passes"] == pytest.approx(2 * found["short"]["passes"], rel=0.1)


def test_samples_left_out_are_of_their_dataset(run, read, write):
    packing = ("plan", write(), "--pack", 200)
    overlong = read(run(*packing, "--json"))["mixture"]["datasets"][0]["left_out"]["overlong"]
    assert overlong == 2
    assert "training refuses them without overlong=" in run(*packing).stdout
    report = read(run("plan", write(), "--batch-size", 4, "--json"))
    found = {each["name"]: each for each in report["mixture"]["datasets"]}
    left_out = {
        name: {reason: count for reason, count in each["left_out"].items() if count}
        for name, each in found.items()
    }
    assert left_out == {"shards": {}, "short": {"where": 2, "limit": 18}, "long": {"limit": 30}}
    assert {name: each["samples"] for name, each in found.items()} == {
        "shards": 40, "short": 20, "long": 10,
    }  # fmt: skip
    assert report["left_out"]["limit"] == 48
    assert "2 by where, 18 over limit" in run("plan", write(), "--batch-size", 4).stdout


def test_a_dataset_that_is_not_drawn_has_a_row(run, read, write):
    path = write(text=f"{TEXT}datasets: {{{{shards/: 1, later: {{{{path: shards, weight: 0}}}}}}}}")
    found = read(run("plan", path, "--batch-size", 4, "--json"))["mixture"]["datasets"][1]
    assert (found["drawn"], found["passes"], found["padding"]) == (0, 0, None)
    rows = rows_of(run("plan", path, "--batch-size", 4).stdout)
    assert rows["later"][-2:] == ["-", "0.00"]


def test_images_of_datasets_are_planned_as_training_takes_them(run, read, write):
    text = """
text: {{tokenizer: {tokenizer}, template: chatml}}
image: {{preset: qwen2-vl, max_pixels: 3136}}
datasets: {{shards/: 1, more: {{path: shards, weight: 1}}}}
"""
    path = write(text=text)
    report = read(run("plan", path, "--pack", 512, "--max-patches", 64, "--json"))
    batches = list(datapipe.make_loader(path, pack=datapipe.PackSpec(512, max_patches=64)))
    assert report["steps"] == len(batches)
    assert report["tokens"] == sum(batch["input_ids"].shape[1] for batch in batches)


def test_groups_add_up_in_a_plain_table(run, shards, write):
    assert "passes" not in run("plan", shards, "--batch-size", 4).stdout  # one dataset has none
    table = run("plan", write(), "--batch-size", 4).stdout
    assert table.isascii()
    assert "\x1b" not in table
    assert max(map(len, table.splitlines())) < 120
    rows = rows_of(table)
    assert list(rows) == ["shards", "rest", "short", "long", "all"]
    samples, of, asked, planned, drawn, tokens = range(6)
    for column in (samples, of, drawn, tokens):
        number = {name: int(cells[column].replace(",", "")) for name, cells in rows.items()}
        assert number["rest"] == number["short"] + number["long"]
        assert number["all"] == number["rest"] + number["shards"]
    assert (rows["rest"][asked], rows["shards"][planned]) == ("50.00%", "50.00%")


SCHEDULE = """
text: {{tokenizer: {tokenizer}, template: chatml, image_tokens: 8}}
datasets:
  old: {{path: shards, weight: 1}}
  new: {{path: shards, weight: 0}}
schedule:
- {{from: 30 samples, weights: {{new: 1}}}}
- {{from: 60 samples, over: 40 samples, weights: {{old: 0}}}}
epoch: 80 samples
"""


@pytest.mark.parametrize("unit", [("--batch-size", 4), ("--pack", 512)])
def test_a_schedule_shows_when_its_phases_begin(run, read, write, lengths, unit):
    written = write(text=SCHEDULE)
    path = written.with_suffix(".json")  # JSON says the same as YAML
    path.write_text(json.dumps(yaml.safe_load(written.read_text())))
    asked = ("plan", path, *unit, "--epochs", 2)
    mixture = read(run(*asked, "--json"))["mixture"]
    assert mixture["epochs"] == 2
    mean = (lengths.sum() + 8 * sum(number % 3 for number in range(SAMPLES))) / SAMPLES
    for each in mixture["datasets"]:
        assert each["run_tokens"] == round(each["run_drawn"] * mean)
    phases = mixture["schedule"]
    assert [phase["start"] for phase in phases] == [0, 30, 60, 100]
    assert [phase["epoch"] for phase in phases] == [0, 0, 0, 1]
    assert phases[2]["first"] == {"old": 0.5, "new": 0.5}
    assert phases[2]["last"] == {"old": 0.0, "new": 1.0}
    loader = datapipe.make_loader(path, image=None, epochs=2, **keywords(unit))
    sizes = [len(step.units.samples) for step in loader.plan.steps(epoch=0)]
    for phase in phases[:3]:
        before = sum(sizes[: phase["step"]])
        assert before <= phase["start"] < before + sizes[phase["step"]]
    assert phases[3]["step"] == (5 if unit[0] == "--batch-size" else None)
    lines = run(*asked).stdout.splitlines()
    begin = lines.index("shares of the samples over the run")
    step = phases[1]["step"]
    assert lines[begin + 2] == f"  from sample 30 (epoch 0, step {step}): old 50.00%, new 50.00%"
    assert lines[begin + 3].endswith(": linearly to the shares from sample 100")
    assert lines[begin + 4].startswith("  from sample 100 (epoch 1")
    assert lines[begin + 4].endswith(": new 100.00%")


def test_the_validation_is_planned_by_itself(run, read, write):
    path = write(VALIDATION)
    report = read(run("plan", path, "--validation", "--batch-size", 2, "--json"))
    assert [each["name"] for each in report["mixture"]["datasets"]] == ["held"]
    assert report["samples"] == 6
    trained = read(run("plan", path, "--batch-size", 2, "--json"))["mixture"]["datasets"]
    assert "held" not in {each["name"] for each in trained}


def dataset_plan(name, drawn, groups=()):
    return DatasetPlan(
        name=name, groups=groups, dataset_samples=100, samples=50, asked=float(drawn), drawn=drawn,
        tokens=10 * drawn, images=drawn, slots=None, run_drawn=drawn, run_tokens=10 * drawn,
        left_out=LeftOut(where=50),
    )  # fmt: skip


def test_a_table_of_a_thousand_datasets_shows_the_largest():
    plans = [dataset_plan(f"d{number}", number + 1, ("all of it",)) for number in range(1000)]
    mixture = MixturePlan(epochs=1, datasets=tuple(plans), phases=())
    header, rows = datasets_table(mixture)
    names = [row[0].strip() for row in rows]
    assert names == ["all of it", *(f"d{number}" for number in range(970, 1000)), "970 others",
                     "all"]  # fmt: skip
    drawn = dict(zip(names, (row[header.index("drawn")] for row in rows), strict=True))
    assert drawn["970 others"] == f"{sum(range(1, 971)):,}"
    assert drawn["all of it"] == drawn["all"] == f"{sum(range(1, 1001)):,}"
    assert len(mixture.to_dict()["datasets"]) == 1000


def test_long_and_strange_names_stay_on_one_line():
    long = "/data/" + "folder/" * 30 + "end"
    plans = (dataset_plan(long, 1), dataset_plan("evil\x1b[31m", 2))
    _, rows = datasets_table(MixturePlan(epochs=1, datasets=plans, phases=()))
    assert rows[0][0].startswith("...")
    assert rows[0][0].endswith("folder/end")
    assert len(rows[0][0]) <= 48
    assert rows[1][0] == "evil\\x1b[31m"


def test_many_phases_and_shares_are_cut():
    shares = {f"d{number}": 0.01 for number in range(100)}
    phases = [
        Phase(start=10 * number, epoch=0, step=number, first=shares, last=shares)
        for number in range(50)
    ]
    lines = phase_lines(phases)
    assert len(lines) == 31
    assert lines[-1] == "20 later changes"
    assert lines[0].endswith("92 others 92.00%")
    assert phase_lines(phases[:1]) == []


def test_other_commands_take_a_mixture(run, read, write):
    path, common = write(), ("--pack", 512, "--image", 16, "--json")
    tuned = read(run("tune-workers", path, *common, "--budget", "300s", "--num-workers", 0))
    assert tuned["tuned"] == str(path)
    profiled = run("profile", path, *common, "--seconds", 0.3, "--num-workers", 0)
    assert profiled.exit_code == 0, profiled.stderr
    assert "datapipe convert" not in profiled.stdout
    assert "datapipe pack" not in profiled.stdout
