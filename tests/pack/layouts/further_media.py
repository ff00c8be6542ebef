"""Records that name sound, video, documents and other media, in the forms of several trainers."""

from typing import Any

from .raw import Raw
from .sources_chats import llava, openai, what_turns
from .table import CHATS, LAYOUTS, Fate, Layout, N, layout, packed, refused


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


def _part(kind: str, says: str, content: Any) -> Layout:
    """Return the layout of chats with a part of another medium."""

    def make(raw: Raw) -> Fate:
        parts = [{"type": kind, kind: content}, {"type": "text", "text": "What is it?"}]
        raw.jsonl("data.jsonl", [{"messages": openai(parts, f"It is {n}.")} for n in N])
        return refused(says)

    return Layout(name=f"chat with {kind}", make=make)


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
    _beside("audios", "wav"),
    _beside("videos", "mp4"),
    _part("input_audio", "audio|sound", {"data": "UklGRg==", "format": "wav"}),
    _part("audio", "audio|sound", "a.wav"),
    _part("video_url", "video", {"url": "a.mp4"}),
    _part("video", "video", ["0.jpg", "1.jpg"]),
    _part("file", "file", {"filename": "a.pdf", "file_data": "JVBERg=="}),
    _part("document", "document", {"type": "base64", "data": "JVBERg=="}),
]


@layout("records of images, some with a video")
def mixed(raw: Raw) -> Fate:
    media = [{"image": raw.image(f"images/{n}.jpg", n)} for n in range(5)]
    media += [{"video": raw.other(f"videos/{n}.mp4")} for n in range(5, 8)]
    raw.json("data.json", [{**media[n], "conversations": what_turns(n)} for n in N])
    return packed(*CHATS[:5], rejects=3, says=(("video", 3),))
