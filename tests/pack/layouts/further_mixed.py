"""Layouts in which more than one thing could be the text or the image."""

from __future__ import annotations

import json
import shutil
from typing import Any

from .further_folders import pairs
from .pictures import medium, pages
from .raw import Raw
from .sources_chats import llava, openai
from .table import Fate, N, Sample, captioned, chat, layout, packed, refused, textless


def _chats(raw: Raw, folder: str = "images") -> tuple[list[dict[str, Any]], list[Sample]]:
    """Write images; return records of LLaVA's form and what they make."""
    rows, samples = [], []
    for n in N:
        path = raw.image(f"{folder}/{n}.jpg", n)
        turns = llava("<image>\nWhat?", f"It is {n}.")
        rows.append({"id": str(n), "image": path, "conversations": turns})
        samples.append(chat(n, "<image>What?", f"It is {n}."))
    return rows, samples


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
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"conversations": llava("<image>\nWhat?", f"It is {n}.")}
        members += [(f"{n}.jpg", n), (f"{n}.txt", f"text {n}".encode())]
        members.append((f"{n}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    captions = [captioned(n, f"text {n}") for n in N]
    chats = [chat(n, "<image>What?", f"It is {n}.") for n in N]
    word = "txt|conversations|caption"
    says = ((word, 8),)
    return packed(*captions, says=says), packed(*chats, says=says), refused(word)


@layout("a caption and a chat beside each image")
def caption_and_chat_beside(raw: Raw) -> tuple[Fate, ...]:
    captions = pairs(raw)
    for n in N:
        raw.json(f"{n:03d}.json", {"conversations": llava("<image>\nWhat?", f"It is {n}.")})
    chats = [chat(n, "<image>What?", f"It is {n}.") for n in N]
    word = "txt|json|conversations|caption"
    says = ((word, 8),)
    return packed(*captions, says=says), packed(*chats, says=says), refused(word)


@layout("JSON of a chat beside each image")
def chat_beside(raw: Raw) -> Fate:
    for n in N:
        raw.image(f"{n}.jpg", n)
        raw.json(f"{n}.json", {"conversations": llava("<image>\nWhat?", f"It is {n}.")})
    return packed(*(chat(n, "<image>What?", f"It is {n}.") for n in N))


@layout("two conversations in a record")
def two_chats(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = _chats(raw)
    for n, row in enumerate(rows):
        row["messages"] = openai("<image>Other?", f"Another {n}.")
    raw.jsonl("data.jsonl", rows)
    others = [chat(n, "<image>Other?", f"Another {n}.") for n in N]
    says = (("messages|conversations", 8),)
    return (
        packed(*samples, says=says),
        packed(*others, says=says),
        refused("messages|conversations|several ways"),
    )


@layout("records whose image is an animated GIF")
def animated(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = [], []
    for n in N:
        raw.bytes(f"images/{n}.gif", pages([3 * n, 3 * n + 1, 3 * n + 2], "gif"))
        turns = llava("<image>\nWhat moves?", f"It is {n}.")
        rows.append({"image": f"images/{n}.gif", "conversations": turns})
        samples.append(chat(3 * n, "<image>What moves?", f"It is {n}."))
    raw.json("data.json", rows)
    return packed(*samples, says=(("frame|animat|page", 8),)), refused("frame|animat|page")


@layout("tar of multi-page TIFFs")
def paged_tar(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        members.append((f"{n}.tif", pages([3 * n, 3 * n + 1, 3 * n + 2], "tif")))
        members.append((f"{n}.txt", f"text {n}".encode()))
    raw.tar("part.tar", members, account=False)
    first = packed(*(captioned(3 * n, f"text {n}") for n in N), says=(("page|frame", 8),))
    whole = [captioned((3 * n, 3 * n + 1, 3 * n + 2), f"text {n}") for n in N]
    return first, packed(*whole), refused("page|frame")


def _not_images(raw: Raw, ext: str) -> None:
    rows = []
    for n in N:
        path = raw.other(f"files/{n}.{ext}")
        rows.append({"image": path, "conversations": llava("<image>\nWhat?", f"It is {n}.")})
    raw.json("data.json", rows)


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
    for split, start in (("train", 0), ("test", 20)):
        rows = []
        for n in range(start, start + 8):
            raw.image(f"{split}/{n}.png", n)
            rows.append({"file_name": f"{n}.png", "text": f"text {n}"})
        raw.csv(f"{split}/metadata.csv", rows)
    return packed(*(captioned(n, f"text {n}") for n in N), says=(("image", 8),))


@layout("several questions about an image, a row each")
def rows_of_an_image(raw: Raw) -> Fate:
    rows = []
    for n in N:
        raw.image(f"images/{n % 3}.jpg", n % 3)
        rows.append({"image": f"images/{n % 3}.jpg", "question": f"Q {n}?", "answer": f"A {n}."})
    raw.csv("data.csv", rows)
    return packed(*(chat(n % 3, f"Q {n}?", f"A {n}.") for n in N))


@layout("a column of images and one of their paths")
def bytes_and_paths(raw: Raw) -> Fate:
    rows = [
        {"image": raw.cell(n, "image"), "image_path": f"images/{n}.png", "caption": f"text {n}"}
        for n in N
    ]
    raw.parquet("train-00000-of-00001.parquet", rows)
    return packed(*(captioned(n, f"text {n}") for n in N))


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
    rows = []
    for n in N:
        video = {"bytes": medium("mp4", n), "path": f"{n}.mp4"}
        rows.append({"video": video, "caption": f"text {n}"})
    raw.parquet("train-00000-of-00001.parquet", rows)
    return refused("video|mp4|not an image")


@layout("a table of images and videos by path")
def image_and_video_paths(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        row = {"image": raw.image(f"images/{n}.jpg", n), "video": raw.other(f"clips/{n}.mp4")}
        rows.append(row | {"caption": f"text {n}"})
    raw.csv("data.csv", rows)
    alone = packed(*(captioned(n, f"text {n}") for n in N), says=(("video", 8),))
    return alone, refused("video")


@layout("tar of a chat about an image and a sound")
def chat_and_sound(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        turns = llava("<image>\n<sound>\nWhat?", f"It is {n}.")
        row = {"image": f"{n}.jpg", "sound": f"{n}.wav", "conversations": turns}
        members += [(f"{n}.jpg", n), (f"{n}.wav", medium("wav", n))]
        members.append((f"{n}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    return (refused("sound|wav|audio"),)


@layout("images and texts in tars of their own")
def tars_apart(raw: Raw) -> tuple[Fate, ...]:
    raw.tar("images-0.tar", [(f"{n}.jpg", n) for n in N])
    raw.tar("texts-0.tar", [(f"{n}.txt", f"text {n}".encode()) for n in N])
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
