"""`datapipe plan`: what it says is what training does."""

import numpy as np
import pytest

import datapipe
from datapipe.cli.output import bars

from .conftest import LONG, SAMPLES

IMAGE = 8  # tokens


@pytest.fixture
def plan(run, shards, tokenizer):
    """Plans with a tokenizer; images of eight tokens."""
    options = ("--tokenizer", tokenizer, "--template", "chatml", "--image-tokens", IMAGE)
    return lambda *more: run("plan", shards, *options, *more)


def test_the_plan_that_is_described_is_the_one_that_training_follows(
    read, plan, shards, tokenizer, lengths
):
    options = ("--pack", 512, "--world-size", 2, "--seed", 5, "--epoch", 3, "--json")
    report = read(plan(*options))
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=IMAGE)
    loader = datapipe.make_loader(
        shards, image=None, text=text, pack=512, seed=5, rank=1, world_size=2
    )
    loader.set_epoch(3)
    assert report["steps"] == len(loader)
    tokens = lengths + IMAGE * (np.arange(SAMPLES) % 3)
    assert (report["samples"], report["tokens"]) == (SAMPLES, tokens.sum())
    assert report["fill"] == pytest.approx(tokens.sum() / report["units"] / 512)
    assert report["images"] == sum(number % 3 for number in range(SAMPLES))
    assert (report["unit"], report["epoch"], report["world_size"]) == ("pack", 3, 2)
    assert read(plan(*options, "--step", 1)) == loader.plan.step(1).to_dict()


def test_overlong_samples_are_counted_whether_dropped_or_cut(read, plan, lengths):
    limit = int(np.sort(lengths)[-3]) + 2 * IMAGE
    options = ("--batch-size", 4, "--max-length", limit, "--json")
    dropped = read(plan(*options, "--overlong", "drop"))
    assert (dropped["overlong"], dropped["limit"]) == (len(LONG), limit)
    assert (dropped["samples"], dropped["left_out"]["overlong"]) == (SAMPLES - 2, 2)
    cut = read(plan(*options, "--overlong", "truncate"))
    assert (cut["overlong"], cut["samples"]) == (len(LONG), SAMPLES)
    assert not any(cut["left_out"].values())
    assert dropped["tokens"] + 2 * limit >= cut["tokens"] > dropped["tokens"]
    assert cut["cut_labels"] > 0 == dropped["cut_labels"]
    said = plan(*options[:-1])
    assert f"2 over {limit} tokens; training refuses them" in said.stdout
    refused = plan(*options, "--overlong", "raise")
    assert refused.exit_code == 1
    assert "overlong='drop'" in refused.stderr


def test_images_that_truncation_takes_away_are_counted(plan, caplog):
    said = plan("--pack", IMAGE - 1, "--overlong", "truncate")
    images = sum(number % 3 for number in range(SAMPLES))
    (line,) = (line for line in said.stdout.splitlines() if "cut away" in line)
    assert f"{images} images, " in line
    assert f"truncation removes all {images} images" in caplog.text


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        (("--pack", 128, "--where", "text_tokens < 120"), {"where": len(LONG)}),
        (("--pack", 128, "--max-images", 1), {"images": 12, "overlong": len(LONG)}),
        (("--pack", 128), {"overlong": len(LONG)}),
        (("--batch-size", 7, "--drop-last"), {"last_step": 5}),
    ],
)
def test_every_sample_is_accounted_for(read, plan, options, left_out):
    report = read(plan(*options, "--overlong", "drop", "--json"))
    assert {reason: count for reason, count in report["left_out"].items() if count} == left_out
    assert report["overlong"] == left_out.get("overlong", 0)
    assert report["samples"] + sum(left_out.values()) == report["dataset_samples"] == SAMPLES


def test_the_order_is_the_one_that_training_takes(read, run, shards):
    options = ("--batch-size", 4, "--step", 0, "--json")
    whole, mixed, still = (
        read(run("plan", shards, *options, *more))
        for more in ((), ("--shards-mixed", 1), ("--no-shuffle",))
    )
    assert len({str(view) for view in (whole, mixed, still)}) == 3
    loader = datapipe.make_loader(shards, batch_size=4, shuffle="shards", shards_mixed=1)
    assert mixed == loader.plan.step(0).to_dict()


def test_a_single_sample_shows_beside_thousands():
    assert [row.rstrip() for row in bars([1, 0, 1000])] == ["#", "", "#" * 40]


def test_without_a_tokenizer_steps_and_samples_are_known(read, run, shards):
    report = read(run("plan", shards, "--batch-size", 3, "--world-size", 4, "--json"))
    assert (report["steps"], report["samples"], report["repeats"]) == (4, SAMPLES, 8)
    assert (report["tokens"], report["fill"], report["histogram"]) == (None, None, [])
    lines = run("plan", shards, "--batch-size", 3, "--world-size", 4).stdout.splitlines()
    assert lines[0] == f"Plan of {shards}, epoch 0, 4 ranks"
    assert ["steps", "4"] in [line.split() for line in lines]
    assert "fill" not in [line.split()[0] for line in lines]


def test_the_plan_is_readable_when_piped(plan):
    result = plan("--pack", 512, "--world-size", 2)
    assert result.exit_code == 0
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    for name in ("steps", "packs", "samples", "fill", "padding", "imbalance", "overlong", "time"):
        assert name in [line[0] for line in lines]
    bins = lines[lines.index(["tokens", "of", "a", "sample"]) + 1 :]
    gaps = bins.count(["..."])
    bins = [line for line in bins if line != ["..."]]
    assert (len(bins), gaps) == (5, 2)  # three bins are empty, in two places
    assert sum(int(line[-1]) for line in bins) == SAMPLES
    assert max(bins, key=lambda line: int(line[-1]))[3] == "#" * 40


def test_unusable_texts_are_left_out_and_counted(run, read, tmp_path, make_tar, tokenizer, caplog):
    make_tar(tmp_path / "0.tar", [("0.txt", b"hello"), ("1.txt", b"\xff\xfe"), ("2.txt", b"you")])
    options = ("--tokenizer", tokenizer, "--template", "caption", "--batch-size", 1, "--json")
    report = read(run("plan", tmp_path, *options))
    assert (report["samples"], report["left_out"]["unusable"]) == (2, 1)
    assert "they are left out" in caplog.text


def test_tokens_of_an_image_follow_from_its_size_and_patch(run, read, shards, tokenizer, lengths):
    options = ("--tokenizer", tokenizer, "--template", "chatml", "--batch-size", 4, "--json")
    report = read(run("plan", shards, *options, "--image", "clip"))
    assert report["tokens"] == lengths.sum() + 256 * report["images"]
    result = run("plan", shards, *options, "--image", "224")
    assert result.exit_code == 1
    assert "ImageSpec(patch=...) (patch=14 makes 256" in result.stderr
