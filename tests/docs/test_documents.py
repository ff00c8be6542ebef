"""Documents name what exists: paths, anchors, constants, public names, pages that messages name."""

import importlib
import json
import re
from pathlib import Path
from statistics import median

import pytest

import datapipe
from benchmarks.common import Spread
from tools.docs_site.command_page import command_page
from tools.docs_site.example_pages import example_pages
from tools.docs_site.figures import MARK, NoFigure, race_results, with_figures
from tools.docs_site.links import LINK, ROOT_PAGES, NoPage, rewrite

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
FENCED = re.compile(r"^```.*?^```$|^    .*?$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


def prose(path):
    """Return a document without its blocks of code."""
    return FENCED.sub("", path.read_text("utf-8"))


def anchors(path):
    """Return the anchors of the headings of a document, as git hosts and `mkdocs.yml` make them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings_that_exist(name):
    path = ROOT / name
    for target, anchor in LINK.findall(prose(path)):
        linked = (path.parent / target).resolve()
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor.removeprefix("#") in anchors(linked), target + anchor
    for anchor in re.findall(r"\]\(#([^)]+)\)", prose(path)):
        assert anchor in anchors(path), anchor


def test_links_become_links_of_the_site_or_are_refused():
    for name in NAMES:
        rewrite((ROOT / name).read_text("utf-8"), name)
    assert rewrite("[a](docs/plan.md#x)", "README.md") == "[a](plan.md#x)"
    assert rewrite("[a](../../ARCHITECTURE.md)", "docs/internals/plan.md") == (
        "[a](../architecture.md)"
    )
    with pytest.raises(NoPage, match=r"docs/plan\.md links to \.\./Makefile"):
        rewrite("[a](../Makefile)", "docs/plan.md")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", *(n for n in NAMES if "/internals/" in n)])
def test_paths_in_documents_on_the_code_exist(name):
    paths = [
        code
        for code in CODE.findall(prose(ROOT / name))
        if re.fullmatch(r"[\w./-]*(/|\.py|\.md|\.toml|\.yml)", code) and not code.startswith(".")
    ]
    missing = [
        code
        for code in paths
        if not any((folder / code).exists() for folder in (ROOT, ROOT / "datapipe"))
    ]
    assert missing == []
    if name == "ARCHITECTURE.md":
        assert len(paths) > 60


def test_versions_in_the_architecture_exist():
    text = prose(ROOT / "ARCHITECTURE.md")
    names = [code for code in CODE.findall(text) if re.fullmatch(r"[a-z_.]+\._?[A-Z_]+", code)]
    assert len(names) >= 8
    for name in names:
        module, _, constant = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(f"datapipe.{module}"), constant), int)


def test_the_architecture_says_how_large_rooms_are():
    big = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## What is big")[2]
    named = re.findall(r"((?:`\w+/`,?\s(?:and\s)?)+)\(([\d,]+)\)", big)
    assert len(named) >= 4
    for rooms, lines in named:
        files = [p for r in CODE.findall(rooms) for p in (ROOT / "datapipe" / r).rglob("*.py")]
        counted = sum(len(path.read_text("utf-8").splitlines()) for path in files)
        assert counted == pytest.approx(int(lines.replace(",", "")), rel=0.2), rooms


def test_the_architecture_says_what_ten_changes_touch():
    changes = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Ten changes")[2]
    rows = re.findall(r"^\| (\w.*?) \| (.*?) \|$", changes, re.MULTILINE)[1:]
    assert len(rows) == 10
    for change, files in rows:
        named = [path for path in CODE.findall(files) if "/" in path]
        assert named or "none" in files, change
        for path in named:
            assert (ROOT / "datapipe" / path).exists(), f"{change}: {path}"


def test_the_readme_and_the_architecture_stay_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= 150


def test_messages_of_the_package_name_pages_that_exist():
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in (ROOT / "datapipe").rglob("*.py")
        # Not the pages of others, such as https://host/docs/page.
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.\w+(?:#[\w-]+)?", path.read_text("utf-8"))
    }
    assert len(named) >= 3
    for source, page in sorted(named):
        path, _, anchor = page.partition("#")
        assert (ROOT / path).exists(), f"{source}: {page}"
        if anchor:
            assert anchor in anchors(ROOT / path), f"{source}: {page}"


def test_the_api_pages_have_every_public_name():
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    shown = re.findall(r"^::: datapipe\.(\w+)$", pages, re.MULTILINE)
    assert sorted(shown) == datapipe.__all__


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*ROOT_PAGES.values(), "cli.md", *example_pages(ROOT / "examples")}
    assert sorted(listed) == sorted(pages | made)


def test_the_page_of_the_command_has_every_subcommand_and_option():
    page = command_page()
    for name in ("pack", "convert", "inspect", "index", "plan", "profile", "tune-workers"):
        assert f"## datapipe {name}\n" in page
    assert "    datapipe tune-workers [SHARDS] [OPTIONS]\n" in page
    assert "\n`--max-rejects MAX_REJECTS`\n:   " in page
    assert "`--dry-run`\n:   " in page  # a switch takes no value
    assert "Default: `512MB`." in page


def test_every_documented_result_is_drawn_and_from_its_file_alone(tmp_path):
    results = ROOT / "benchmarks/results"
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    assert {name for _, name in MARK.findall(page)} == {path.stem for path in results.glob("*")}
    drawn = with_figures(page, results)
    assert not MARK.search(drawn)
    assert "<svg" in drawn

    content = json.loads((results / "loaders-uint8.json").read_text("utf-8"))
    for run in content["results"][0]["runs"]:
        run.update(samples=7654321, seconds=1.0)
    (tmp_path / "changed.json").write_text(json.dumps(content))
    race = with_figures("<!-- figure race changed -->", tmp_path)
    assert race.count("7,654,321") == 2  # in the table and in the chart
    with pytest.raises(NoFigure, match=r"figure race missing: .*missing\.json"):
        with_figures("<!-- figure race missing -->", tmp_path)


def test_figures_of_the_readme_are_those_of_the_results():
    table = re.sub(r"\*\*", "", (ROOT / "README.md").read_text("utf-8"))
    for name, contestant, *references in (
        ("loaders-float32", "datapipe", "torch", "ffcv"),
        ("cache-second-float32", "datapipe, cached", "datapipe"),
        ("memmap-warm", "datapipe, arrays", "limit: gather"),
        ("pack", "datapipe, decode", "limit: decode"),
        ("pack-header", "datapipe, header", "ShardWriter"),
    ):
        results = {result.name: result for result in race_results(load(name))}
        own = results[contestant]
        assert f"| {own.rate.median:,.0f} " in table, name
        for reference in references:
            ratio = own.ratio(results[reference])
            digits = 1 if ratio.median > 10 else 2
            shown = [f"{value:.{digits}f}" for value in ratio]
            assert f"{shown[0]} ({shown[1]}-{shown[2]}) x" in table, f"{name}, {reference}"

    rungs = {rung["name"]: rung["runs"] for rung in load("ladder-cpu")["results"]}
    packs = [run["tokens_per_s"] for run in rungs["packs of 2,048 tokens"]]
    padded = [run["tokens_per_s"] for run in rungs["fewer synchronisations"]]
    ratio = Spread.of([pair[0] / pair[1] for pair in zip(packs, padded, strict=True)])
    assert f"{median(packs):,.0f} tokens/s | {ratio.median:.2f} ({ratio.low:.2f}" in table

    fill = next(
        row for row in load("plan")["fill"] if (row["lengths"], row["capacity"]) == ("256", 8192)
    )
    assert f"{fill['datapipe']:.2%}".replace("%", " %") in table
    assert f"next-fit {fill['next-fit']:.2%}".replace("%", " %") in table
    first = Spread.of([run["first_step_s"] for run in load("billion")["rounds"]])
    assert f"{first.median:.2f} s ({first.low:.2f}-{first.high:.2f})" in table


def load(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))
