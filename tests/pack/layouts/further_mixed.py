"""Layouts in which more than one thing could be the text or the image."""

from __future__ import annotations

from typing import Any

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


@layout("a table of images and videos by path")
def image_and_video_paths(raw: Raw) -> tuple[Fate, ...]:
    rows = []
    for n in N:
        row = {"image": raw.image(f"images/{n}.jpg", n), "video": raw.other(f"clips/{n}.mp4")}
        rows.append(row | {"caption": f"text {n}"})
    raw.csv("data.csv", rows)
    alone = packed(*(captioned(n, f"text {n}") for n in N), says=(("video", 8),))
    return alone, refused("video")


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
