"""`preview`: the page shows what training takes, whatever the form of images and texts."""

import base64
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image

import datapipe
from tests.flipping import flip
from tests.loader.video_shards import FRAMES, STILLS, make_shards

SIZE = (224, 160)
COLOURS = np.array([[230, 30, 30], [30, 200, 30], [30, 30, 220], [230, 220, 40]], np.uint8)
TALK = [
    {"from": "human", "value": "<image>What is it?"},
    {"from": "gpt", "value": "Four colours. And an ß."},
    {"from": "human", "value": "Sure?"},
    {"from": "gpt", "value": "Yes, quite sure."},
]
FORMS = {
    "stretch": datapipe.ImageSpec(size=96),
    "crop": datapipe.ImageSpec(size=96, resize="crop", normalize="clip"),
    "pad": datapipe.ImageSpec(size=96, resize="pad", dtype=torch.uint8),
    "bfloat16": datapipe.ImageSpec(size=96, normalize="siglip", dtype=torch.bfloat16),
    "qwen2-vl": datapipe.ImageSpec.preset("qwen2-vl"),
    "dynamic": datapipe.ImageSpec(resize="dynamic", patch=16, longest=128, normalize="clip"),
    "internvl": datapipe.ImageSpec.preset("internvl"),
    "llava-next": datapipe.ImageSpec.preset("llava-next"),
    "rows": datapipe.ImageSpec(resize="native", merge=2, patch_order="rows", normalize="siglip"),
    "naflex": datapipe.ImageSpec(resize="naflex", size=64, patch=16, max_pixels=64**2),
    "budget": datapipe.ImageSpec(resize="budget", tokens=60, patch=16, merge=1),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Six samples whose image has a colour in each quarter; the last two are the same file."""
    raw = tmp_path_factory.mktemp("raw")
    for number in range(6):
        pixels = np.kron(COLOURS.reshape(2, 2, 3), np.ones((SIZE[1] // 2, SIZE[0] // 2, 1), "u1"))
        pixels[:2, :2] = min(number, 4)
        Image.fromarray(pixels).save(raw / f"{number}.png")
    (raw / "broken.png").write_bytes((raw / "0.png").read_bytes()[:300])
    names = [*range(6), "none", "broken"]
    records = [{"image": f"{name}.png", "conversations": TALK} for name in names]
    (raw / "data.json").write_text(json.dumps(records))
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=4, max_rejects=2)
    return out


@pytest.fixture
def content(tmp_path):
    """Writes a page, and returns what it draws."""

    def write(path, **options):
        datapipe.preview(path, tmp_path / "preview.html", **options)
        return content_of((tmp_path / "preview.html").read_text("utf-8"))

    return write


def content_of(page):
    found = re.search(r'<script id="content" type="application/json">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def samples_of(content):
    return [sample for step in content["steps"] for sample in step["samples"]]


def pixels_of(url):
    head, _, data = url.partition(",")
    assert head == "data:image/webp;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), np.int64)


def quarters(pixels):
    """The colours in the middles of the quarters of an image: [4, 3]."""
    height, width, _ = pixels.shape
    return np.array(
        [pixels[height * y // 4, width * x // 4] for y in (1, 3) for x in (1, 3)], np.int64
    )


@pytest.mark.parametrize("form", FORMS)
def test_images_are_shown_as_the_model_sees_them(form, shards, content):
    shown = samples_of(content(shards, image=FORMS[form], samples=4))
    assert len(shown) == 4
    for sample in shown:
        (image,) = sample["images"]
        assert (image["width"], image["height"]) == SIZE
        assert np.abs(quarters(pixels_of(image["original"])) - COLOURS).max() < 24
        pictures = [pixels_of(url) for url in image["pictures"]]
        whole = pictures[-1]  # of several tiles the last shows the whole
        assert np.abs(quarters(whole) - COLOURS).max() < 24
        if len(pictures) > 1:
            across = image["columns"]
            tiles = pictures[:-1]
            rows = [np.hstack(tiles[at : at + across]) for at in range(0, len(tiles), across)]
            assert np.abs(quarters(np.vstack(rows)) - COLOURS).max() < 24


def test_a_crop_is_framed_on_the_original(shards, content):
    shown = samples_of(content(shards, image=FORMS["crop"], samples=1))
    left, top, right, bottom = shown[0]["images"][0]["seen"]
    assert (top, bottom) == (0, 1)
    assert right - left == pytest.approx(SIZE[1] / SIZE[0], abs=0.01)
    assert left == pytest.approx(1 - right, abs=0.01)


@pytest.mark.parametrize("pack", [None, 400])
def test_tokens_are_those_of_the_batch(pack, shards, tokenizer, content):
    text = datapipe.TextSpec(
        tokenizer=tokenizer, template="chatml", image_tokens=5, max_length=95, overlong="truncate"
    )
    options = {"text": text, "image": FORMS["stretch"], "pack": pack}
    if pack is None:
        options["batch_size"] = 3
    page = content(shards, samples=6, **options)
    loader = datapipe.make_loader(shards, meta="key", num_workers=0, **options)
    batches = list(loader)
    assert [sample["key"] for sample in samples_of(page)] == [
        key for batch in batches for key in batch["key"]
    ][:6]
    for step, batch in zip(page["steps"], batches, strict=False):
        assert sum(step["lengths"]) == (
            batch["input_ids"].shape[1] if pack else int(batch["attention_mask"].sum())
        )
        assert step["capacity"] == (pack or batch["input_ids"].shape[1])
    for sample in samples_of(page):
        (shown,) = sample["tokens"]
        assert (shown["kept"], shown["images_cut"]) == (95, 0)
        written = "".join("<image>" if bits & 2 else piece for piece, bits in shown["pieces"])
        assert written == (
            "<|im_start|>user\n<image>What is it?<|im_end|>\n"
            "<|im_start|>assistant\nFour colours. And an ß.<|im_end|>\n"
            "<|im_start|>user\nSure?<|im_end|>\n"
            "<|im_start|>assistant\nYes, quite sure.<|im_end|>\n"
        )
        learnt = "".join(piece for piece, bits in shown["pieces"] if bits & 1)
        assert learnt == "Four colours. And an ß.<|im_end|>Yes, quite sure.<|im_end|>"
        assert [piece for piece, bits in shown["pieces"] if bits & 2] == ["5"]
        assert "ß" in [piece for piece, bits in shown["pieces"]]
        kept = "".join(piece for piece, bits in shown["pieces"] if not bits & 4)
        removed = shown["total"] - shown["kept"]
        assert removed == sum(
            1 if bits & 8 else len(piece.encode()) for piece, bits in shown["pieces"] if bits & 4
        )
        assert kept.endswith("ser\nSure?") or removed


def test_the_first_tokens_are_shown_of_an_image_with_more(shards, tokenizer, content):
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=5000)
    page = content(shards, samples=1, batch_size=1, text=text, image=FORMS["stretch"])
    (shown,) = samples_of(page)[0]["tokens"]
    *before, (image, _) = shown["pieces"]
    assert "".join(piece for piece, _ in before) == "<|im_start|>user\n"
    assert (image, shown["shown"]) == ("4,090", 4096)


def test_a_step_of_a_rank_is_the_one_that_training_takes(shards, content):
    options = {"batch_size": 1, "image": FORMS["stretch"], "seed": 3}
    page = content(shards, step=2, rank=1, world_size=2, epoch=1, samples=1, **options)
    loader = datapipe.make_loader(shards, rank=1, world_size=2, epochs=None, **options)
    loader.set_epoch(1)
    expected = loader.plan.step(2).ranks[1].keys
    assert [sample["key"] for sample in samples_of(page)] == expected
    assert [step["step"] for step in page["steps"]] == [2]
    with pytest.raises(datapipe.PlanError, match=r"step 9: epoch 1 has no such step"):
        content(shards, step=9, epoch=1, **options)


def test_equal_images_and_rejects_are_named(shards, content):
    page = content(shards, image=FORMS["stretch"])
    duplicates = page["facts"]["duplicates"]
    assert (duplicates["images"], duplicates["repeated"]) == (6, 1)
    assert [group["keys"] for group in duplicates["groups"]] == [["000000004", "000000005"]]
    assert [reason["count"] for reason in page["rejected"]] == [1, 1]
    named = " ".join(reason["reason"] for reason in page["rejected"])
    assert "file is missing" in named
    assert all(reason["examples"][0]["file"].endswith(".png") for reason in page["rejected"])


def test_a_damaged_sample_is_shown_with_its_error(shards, tmp_path, content):
    copy = shutil.copytree(shards, tmp_path / "copy")
    flip(min(copy.glob("*.tar")), 700)
    page = content(copy, image=FORMS["stretch"], batch_size=2)
    shown = {sample["key"]: sample for sample in samples_of(page)}
    damaged = shown.pop("000000000")
    assert "its bytes are not those" in damaged["error"]
    assert not damaged["valid"]
    assert all(sample["valid"] and not sample["error"] for sample in shown.values())


def test_captions_cannot_become_part_of_the_page(tmp_path, make_folder, content):
    raw = make_folder(tmp_path / "raw", 2)
    evil = "</script><script>alert(1)</script><!-- \u2028 &amp;"
    (raw / "000.txt").write_text(evil, encoding="utf-8")
    datapipe.pack_dataset(raw, tmp_path / "shards")
    page = content(tmp_path / "shards", image=FORMS["stretch"], shuffle=False)
    assert samples_of(page)[0]["text"] == evil
    assert "alert(1)</script>" not in (tmp_path / "preview.html").read_text("utf-8")


def test_a_mixture_shows_which_dataset_each_sample_is_of(shards, tmp_path, make_folder, content):
    datapipe.pack_dataset(make_folder(tmp_path / "raw"), tmp_path / "more")
    mixture = {"colours": {"path": str(shards)}, "more": {"path": str(tmp_path / "more")}}
    page = content(mixture, image=FORMS["stretch"], samples=14)
    assert page["facts"]["datasets"] == {"colours": 6, "more": 8}
    assert {sample["dataset"] for sample in samples_of(page)} == {"colours", "more"}


def test_arrays_show_what_the_model_sees(shards, tmp_path, content):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=datapipe.ImageSpec(size=64))
    for sample in samples_of(content(tmp_path / "arrays", samples=2)):
        (image,) = sample["images"]
        assert "original" not in image
        assert np.abs(quarters(pixels_of(image["pictures"][0])) - COLOURS).max() < 24


def test_arrays_show_the_texts_and_tokens_of_their_shards(shards, tmp_path, tokenizer, content):
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=5)
    image = datapipe.ImageSpec(size=64)
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=image, text=text)
    told = [
        [(sample["text"], sample["record"], sample["tokens"], sample["error"]) for sample in shown]
        for path in (shards, tmp_path / "arrays")
        for shown in [samples_of(content(path, samples=3, image=image, text=text))]
    ]
    assert told[0] == told[1]
    assert told[0][0][2][0]["learnt"] > 0


def test_a_video_is_a_strip_of_frames_with_their_times(tmp_path, content):
    def shown(**options):
        image = datapipe.ImageSpec(size=32, **options)
        page = content(tmp_path / "shards", image=image, shuffle=False)
        return {sample["key"]: sample for sample in samples_of(page)}

    make_shards(tmp_path / "shards")
    samples = shown()
    assert (tmp_path / "preview.html").stat().st_size < 200_000
    for key, sample in samples.items():
        assert [video["count"] for video in sample["videos"]] == list(FRAMES[key])
        stills = [image for image in sample["images"] if "original" in image]
        assert len(stills) == (key in STILLS)
    first, second = samples["002"]["videos"]
    assert [frame["image"] for frame in first["frames"]] == [1, 2, 3]
    assert [frame["image"] for frame in second["frames"]] == list(range(4, 13))
    assert [frame["time"] for frame in second["frames"]] == [at / 2 for at in range(9)]
    assert all(frame["picture"].startswith("data:image/webp") for frame in second["frames"])
    (long,) = samples["003"]["videos"]  # some of whose frames are shown
    numbers = [frame["image"] for frame in long["frames"]]
    assert (long["count"], len(numbers), numbers[0], numbers[-1]) == (40, 32, 0, 39)
    (long,) = shown(max_frames=3)["003"]["videos"]
    assert [frame["time"] for frame in long["frames"]] == [0, 10, 19.5]


def test_a_page_of_many_large_samples_ends_before_eight_megabytes(
    tmp_path, content, monkeypatch, shards
):
    monkeypatch.setattr("datapipe.inspect.preview.build.ROOM", 4_000)
    page = content(shards, image=FORMS["stretch"], batch_size=1)
    assert 1 <= len(samples_of(page)) < 6
    assert page["full"]


def test_of_many_samples_without_token_counts_a_page_shows_some(run, tokenizer, tmp_path):
    raw, out, page = tmp_path / "raw.jsonl", tmp_path / "shards", tmp_path / "a.html"
    raw.write_text(f"{json.dumps({'conversations': TALK[2:]})}\n" * 10_001)
    datapipe.pack_dataset(raw, out)

    def drawn(*words):
        options = ["--tokenizer", tokenizer, "--template", "chatml", "--pack", 512, "-o", page]
        result = run("preview", out, *options, *words)
        assert result.exit_code == 0, result.output
        return content_of(page.read_text("utf-8")) | {"output": result.output}

    some = drawn()
    assert some["title"] == f"10,000 samples of {out}, drawn at random"
    assert "datapipe index" in some["output"]
    assert some["about"]["samples"] == some["facts"]["epoch"] == 10_000
    assert not list(out.glob("tokens-*"))
    exact = drawn("--step", 1, "--samples", 2)  # which counts the tokens of all
    assert exact["about"]["samples"] == 10_001
    assert len(samples_of(exact)) == 2
    assert drawn()["title"] == str(out)


def test_a_served_page_shows_the_step_that_is_asked_for(shards):
    script = "from datapipe.cli.command import run; run()"
    options = ["--serve", "0", "--image", "size=64", "--batch-size", "2", "--samples", "2"]
    command = [sys.executable, "-c", script, "preview", str(shards), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}?step=1") as answer:
            page = content_of(answer.read().decode())
        assert [step["step"] for step in page["steps"]] == [1]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}?step=99")
        assert "step 99" in refused.value.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
