"""Layouts in which more than one thing could be the text or the image."""

from __future__ import annotations

import shutil
from typing import Any

from .further_folders import pairs
from .pictures import medium, pages
from .raw import Raw
from .sources_chats import llava, openai, what_turns
from .table import (
    CHATS,
    TEXTS,
    Fate,
    N,
    Sample,
    captioned,
    chat,
    counted,
    layout,
    packed,
    refused,
    textless,
)


def _chats(raw: Raw) -> list[dict[str, Any]]:
    """Write the images of `CHATS`; return their records in LLaVA's form."""
    paths = [raw.image(f"images/{n}.jpg", n) for n in N]
    return [{"id": str(n), "image": paths[n], "conversations": what_turns(n)} for n in N]


def _either(first: list[Sample], others: list[Sample], word: str) -> tuple[Fate, ...]:
    """Return the fates of two texts an image: either of them with a count, or a refusal."""
    return packed(*first, says=((word, 8),)), *counted(others, word)


# https://huggingface.co/datasets/liuhaotian/LLaVA-CC3M-Pretrain-595K
@layout("LLaVA-CC3M-Pretrain-595K")
def llava_cc3m(raw: Raw) -> Fate:
    rows, meta, samples = [], [], []
    for n in N:
        name = f"GCC_train_{n:09d}.jpg"
        raw.image(f"images/{name}", n)
        rows.append(
            {"id": name, "image": name, "conversations": llava("Say it.\n<image>", f"a {n}")}
        )
        words = {"caption": f"cap {n}", "blip_caption": f"blip {n}"}
        meta.append({"id": name, "image": name, **words, "url": "http://a.b/c"})
        samples.append(chat(n, "Say it.<image>", f"a {n}"))
    raw.json("chat.json", rows)
    raw.json("metadata.json", meta)
    return packed(*samples)


@layout("tar of a caption and a chat")
def caption_and_chat(raw: Raw) -> tuple[Fate, ...]:
    records = [{"conversations": what_turns(n)} for n in N]
    parts = {f"{n}": {"jpg": n, "txt": f"text {n}", "json": records[n]} for n in N}
    raw.shard("part.tar", parts)
    return _either(TEXTS, CHATS, "txt|conversations|caption")


@layout("a caption and a chat beside each image")
def caption_and_chat_beside(raw: Raw) -> tuple[Fate, ...]:
    captions = pairs(raw)
    raw.files({f"{n:03d}": {"json": {"conversations": what_turns(n)}} for n in N})
    return _either(captions, CHATS, "txt|json|conversations|caption")


@layout("JSON of a chat beside each image")
def chat_beside(raw: Raw) -> Fate:
    raw.files({f"{n}": {"jpg": n, "json": {"conversations": what_turns(n)}} for n in N})
    return packed(*CHATS)


@layout("two conversations in a record")
def two_chats(raw: Raw) -> tuple[Fate, ...]:
    rows = _chats(raw)
    for n, row in enumerate(rows):
        row["messages"] = openai("<image>Other?", f"Another {n}.")
    raw.jsonl("data.jsonl", rows)
    others = [chat(n, "<image>Other?", f"Another {n}.") for n in N]
    return *_either(CHATS, others, "messages|conversations"), refused("several ways")


@layout("records whose image is an animated GIF")
def animated(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = [], []
    for n in N:
        raw.bytes(f"images/{n}.gif", pages([3 * n, 3 * n + 1, 3 * n + 2], "gif"))
        turns = llava("<image>\nWhat moves?", f"It is {n}.")
        rows.append({"image": f"images/{n}.gif", "conversations": turns})
        samples.append(chat(3 * n, "<image>What moves?", f"It is {n}."))
    raw.json("data.json", rows)
    return counted(samples, "frame|animat|page")


@layout("tar of multi-page TIFFs")
def paged_tar(raw: Raw) -> tuple[Fate, ...]:
    numbers = [(3 * n, 3 * n + 1, 3 * n + 2) for n in N]
    tiffs = [pages([*those], "tif") for those in numbers]
    raw.shard("part.tar", {f"{n}": {"tif": tiffs[n], "txt": f"text {n}"} for n in N}, account=False)
    whole = packed(*(captioned(numbers[n], f"text {n}") for n in N))
    return whole, *counted([captioned(3 * n, f"text {n}") for n in N], "page|frame")


def _not_images(raw: Raw, ext: str) -> None:
    paths = [raw.other(f"files/{n}.{ext}") for n in N]
    raw.json("data.json", [{"image": paths[n], "conversations": what_turns(n)} for n in N])


@layout("records whose image is a PDF")
def image_is_pdf(raw: Raw) -> Fate:
    _not_images(raw, "pdf")
    return refused("pdf|document|not an image")


@layout("records whose image is a video")
def image_is_video(raw: Raw) -> Fate:
    _not_images(raw, "mp4")
    return refused("mp4|video|not an image")


@layout("a zip as RAW")
def zip_as_raw(raw: Raw) -> Fate:
    pairs(raw, "data/")
    shutil.make_archive(str(raw.folder / "data"), "zip", raw.folder / "data")
    raw.given = raw.folder / "data.zip"
    return refused("unzip|unpack")


@layout("an empty table")
def empty_table(raw: Raw) -> Fate:
    raw.text("data.csv", "image,caption\n")
    return refused("no sample|no known format|empty")


@layout("an empty list of records")
def empty_list(raw: Raw) -> Fate:
    raw.json("data.json", [])
    return refused("no sample|no known format|empty|no records")


@layout("imagefolder of two splits", include="train/*")
def two_imagefolders(raw: Raw) -> Fate:
    for split, numbers in (("train", N), ("test", range(20, 28))):
        raw.files({f"{split}/{n}": {"png": n} for n in numbers})
        rows = [{"file_name": f"{n}.png", "text": f"text {n}"} for n in numbers]
        raw.csv(f"{split}/metadata.csv", rows)
    return packed(*TEXTS, says=(("image", 8),))


@layout("several questions about an image, a row each")
def rows_of_an_image(raw: Raw) -> Fate:
    images = [raw.image(f"images/{n}.jpg", n) for n in range(3)]
    rows = [{"image": images[n % 3], "question": f"Q {n}?", "answer": f"A {n}."} for n in N]
    raw.csv("data.csv", rows)
    return packed(*(chat(n % 3, f"Q {n}?", f"A {n}.") for n in N))


@layout("a column of images and one of their paths")
def bytes_and_paths(raw: Raw) -> Fate:
    images = [{"image": raw.cell(n, "image"), "image_path": f"images/{n}.png"} for n in N]
    rows = [{**images[n], "caption": f"text {n}"} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    return packed(*TEXTS)


# Questions as https://github.com/haotian-liu/LLaVA, docs/Evaluation.md has them: without answers.
@layout("questions without answers")
def unanswered(raw: Raw) -> Fate:
    rows = []
    for n in N:
        row = {"question_id": n, "image": raw.image(f"images/{n}.jpg", n), "text": f"What is {n}?"}
        rows.append(row | {"category": "detail"})
    raw.jsonl("questions.jsonl", rows)
    return refused("question", "answer")


@layout("a table with a column of videos")
def video_column(raw: Raw) -> Fate:
    videos = [{"bytes": medium("mp4", n), "path": f"{n}.mp4"} for n in N]
    rows = [{"video": videos[n], "caption": f"text {n}"} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    return refused("video|mp4|not an image")


@layout("a table of images and videos by path")
def image_and_video_paths(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        row = {"image": raw.image(f"images/{n}.jpg", n), "video": raw.other(f"clips/{n}.mp4")}
        rows.append(row | {"caption": f"text {n}"})
    raw.csv("data.csv", rows)
    return counted(TEXTS, "video")


@layout("tar of a chat about an image and a sound")
def chat_and_sound(raw: Raw) -> Fate:
    parts = {}
    for n in N:
        turns = llava("<image>\n<sound>\nWhat?", f"It is {n}.")
        row = {"image": f"{n}.jpg", "sound": f"{n}.wav", "conversations": turns}
        parts[f"{n}"] = {"jpg": n, "wav": medium("wav", n), "json": row}
    raw.shard("part.tar", parts)
    return refused("sound|wav|audio")


@layout("images and texts in tars of their own")
def tars_apart(raw: Raw) -> tuple[Fate, ...]:
    raw.shard("images-0.tar", {f"{n}": {"jpg": n} for n in N})
    raw.shard("texts-0.tar", {f"{n}": {"txt": f"text {n}"} for n in N})
    silent = [textless(n) for n in N]
    alone = [captioned((), f"text {n}") for n in N]
    return (
        refused("text|txt"),
        packed(*silent, *alone, says=(("no text", 8),)),
        packed(*silent, rejects=8, says=(("no text", 8),)),
    )


@layout("Parquet with a missing part")
def missing_part(raw: Raw) -> Fate:
    rows = [{"image": raw.cell(n, "image"), "caption": f"text {n}"} for n in N]
    raw.parquet("train-00000-of-00002.parquet", rows)
    return refused("00001|missing|1 of 2")


@layout("links that lead nowhere")
def dangling(raw: Raw) -> Fate:
    samples = pairs(raw)
    raw.path("lost.jpg").symlink_to("nowhere.jpg")
    raw.count("lost.jpg", None)
    return packed(*samples, rejects=1, says=("lost.jpg",))


@layout("images that are web pages")
def pages_of_the_web(raw: Raw) -> Fate:
    samples = pairs(raw)
    for n in range(3):
        raw.other(f"web{n}.jpg", b"<!DOCTYPE html><html><body>404 Not Found</body></html>")
    return packed(*samples, rejects=3, says=(("HTML", 3),))
