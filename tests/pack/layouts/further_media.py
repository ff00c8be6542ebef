"""Records that name sound, video, documents and other media, in the forms of several trainers."""

from __future__ import annotations

from typing import Any

from .raw import Raw
from .sources_chats import llava, openai, what_turns
from .table import CHATS, LAYOUTS, TEXTS, Fate, Layout, N, counted, layout, packed, refused


def _named(field: str, ext: str, mark: str, *, listed: bool) -> Layout:
    """Return the layout of LLaVA's records with a field of a medium."""

    def make(raw: Raw) -> Fate:
        rows = []
        for n in N:
            path = raw.other(f"media/{n}.{ext}")
            turns = llava(f"{mark}\nWhat is it?", f"It is {n}.")
            rows.append({"id": str(n), field: [path] if listed else path, "conversations": turns})
        raw.json("data.json", rows)
        return refused(rf"{field}|video|sound|audio|document")

    return Layout(name=f"LLaVA records with {field}" + (" in a list" if listed else ""), make=make)


LAYOUTS += [
    _named("sound", "wav", "<sound>", listed=False),
    _named("sound", "wav", "", listed=True),
    _named("audio", "mp3", "<audio>", listed=False),
    _named("audios", "mp3", "", listed=True),
    _named("video", "mp4", "", listed=False),
    _named("videos", "mp4", "<video>", listed=True),
    _named("pdf", "pdf", "", listed=False),
    _named("speech", "wav", "<speech>", listed=False),
    _named("point_cloud", "npy", "<point>", listed=False),
]


def _beside(field: str, ext: str) -> Layout:
    """Return the layout of messages with images and another medium: the answer needs both."""

    def make(raw: Raw) -> Fate:
        rows = []
        for n in N:
            image = raw.image(f"media/{n}.jpg", n)
            path = raw.other(f"media/{n}.{ext}")
            turns = openai("<image>What is seen and heard?", f"It is {n}.")
            rows.append({"messages": turns, "images": [image], field: [path]})
        raw.jsonl("data.jsonl", rows)
        return refused(rf"{field}|video|sound|audio")

    return Layout(name=f"messages with images and {field}", make=make)


LAYOUTS += [_beside("audios", "wav"), _beside("videos", "mp4")]


def _part(name: str, part: dict[str, Any], says: str) -> Layout:
    """Return the layout of chats with a part of another medium."""

    def make(raw: Raw) -> Fate:
        text = {"type": "text", "text": "What is it?"}
        rows = [{"messages": openai([part, text], f"It is {n}.")} for n in N]
        raw.jsonl("data.jsonl", rows)
        return refused(says)

    return Layout(name=f"chat with {name}", make=make)


LAYOUTS += [
    _part(
        "input_audio",
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        "audio|sound",
    ),
    _part("audio", {"type": "audio", "audio": "a.wav"}, "audio|sound"),
    _part("video_url", {"type": "video_url", "video_url": {"url": "a.mp4"}}, "video"),
    _part("video", {"type": "video", "video": ["0.jpg", "1.jpg"]}, "video"),
    _part("file", {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBERg=="}}, "file"),
    _part(
        "document",
        {"type": "document", "source": {"type": "base64", "data": "JVBERg=="}},
        "document",
    ),
]


@layout("records of images, some with a video")
def mixed(raw: Raw) -> Fate:
    media = [{"image": raw.image(f"images/{n}.jpg", n)} for n in range(5)]
    media += [{"video": raw.other(f"videos/{n}.mp4")} for n in range(5, 8)]
    raw.json("data.json", [{**media[n], "conversations": what_turns(n)} for n in N])
    return packed(*CHATS[:5], rejects=3, says=(("video", 3),))


# https://github.com/modelscope/ms-swift, docs, Custom-dataset.md: boxes to be filled in.
@layout("ms-swift grounding")
def grounding(raw: Raw) -> Fate:
    rows = []
    for n in N:
        path = raw.image(f"{n}.jpg", n)
        turns = openai("<image>Find the <ref-object>", "<bbox>")
        objects = {"ref": ["sheep"], "bbox": [[90.9, 160.8, 135, 212.8]]}
        rows.append({"messages": turns, "images": [path], "objects": objects})
    raw.jsonl("data.jsonl", rows)
    return refused("bbox|objects")


def _sound(n: int) -> dict[str, Any]:
    return {"bytes": b"RIFF\0\0\0\0WAVE", "path": f"{n}.wav"}


@layout("a table with a column of sound")
def sound_column(raw: Raw) -> Fate:
    rows = [{"audio": _sound(n), "text": f"words {n}"} for n in N]
    raw.parquet("train-00000-of-00001.parquet", rows)
    return refused("audio|sound|image")


@layout("a table with columns of images and sound")
def image_and_sound_columns(raw: Raw) -> tuple[Fate, ...]:
    cells = [{"image": raw.cell(n, "image"), "audio": _sound(n)} for n in N]
    raw.parquet("train-00000-of-00001.parquet", [{**cells[n], "caption": f"text {n}"} for n in N])
    return counted(TEXTS, "audio|sound")


@layout("CSV of videos and captions")
def webvid(raw: Raw) -> Fate:
    rows = [{"videoid": n, "path": raw.other(f"videos/{n}.mp4"), "caption": f"c {n}"} for n in N]
    raw.csv("results_2M_train.csv", rows)
    return refused("video|mp4|image")
