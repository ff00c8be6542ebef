"""Tars of several members of a sample, of members in folders, and of other media."""

from __future__ import annotations

import json
from typing import Any

from .pictures import medium
from .raw import Raw
from .sources_chats import llava
from .table import Fate, N, Sample, captioned, chat, layout, packed, refused


def _pairs(raw: Raw, name: str, form: str = "{n:04d}", numbers: range = N) -> list[Sample]:
    members: list[tuple[str, bytes | int]] = []
    for n in numbers:
        key = form.format(n=n)
        members += [(f"{key}.jpg", n), (f"{key}.txt", f"text {n}".encode())]
    raw.tar(name, members)
    return [captioned(n, f"text {n}") for n in numbers]


# https://github.com/iejMac/video2dataset, "Output format": as img2dataset, with mp4.
@layout("video2dataset")
def video2dataset(raw: Raw) -> Fate:
    rows, members = [], []
    for n in N:
        row: dict[str, Any] = {"url": "http://a.b/v", "caption": f"text {n}", "key": f"{n:09d}"}
        row |= {"status": "success", "error_message": None, "clips": [[0.0, 1.0]]}
        rows.append(row)
        members += [(f"{n:09d}.mp4", medium("mp4", n)), (f"{n:09d}.txt", f"text {n}".encode())]
        members.append((f"{n:09d}.json", json.dumps(row).encode()))
    raw.tar("00000.tar", members)
    raw.parquet("00000.parquet", rows)
    raw.json("00000_stats.json", {"count": 8, "successes": 8})
    return refused("video|mp4")


@layout("tar of numbered images and a chat")
def tar_of_several(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"conversations": llava("<image><image>\nBoth?", f"It is {n}.")}
        members += [(f"{n}.0.jpg", n), (f"{n}.1.jpg", 20 + n)]
        members.append((f"{n}.json", json.dumps(row).encode()))
    raw.tar("part.tar", members)
    return packed(*(chat((n, 20 + n), "<image><image>Both?", f"It is {n}.") for n in N))


# https://huggingface.co/datasets/BAAI/Infinity-MM: tars of an image and a record of LLaVA's form.
@layout("Infinity-MM")
def infinity_mm(raw: Raw) -> Fate:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"id": str(n), "source": "llava", "image": "/path/of/the/image", "phash": [12512]}
        row |= {"conversations": llava("<image>Poem?", f"Verses {n}"), "ram++_tags": ["wall"]}
        members += [(f"{n:06d}.jpg", n), (f"{n:06d}.json", json.dumps(row).encode())]
    raw.tar("stage2/llava/000000.tar", members[:8])
    raw.tar("stage2/llava/000001.tar", members[8:])
    raw.given = raw.folder / "stage2/llava"
    return packed(*(chat(n, "<image>Poem?", f"Verses {n}") for n in N))


# https://ai.meta.com/datasets/segment-anything/: masks in the JSON, no caption.
@layout("SA-1B")
def sa1b(raw: Raw) -> tuple[Fate, ...]:
    members: list[tuple[str, bytes | int]] = []
    for n in N:
        row = {"image": {"image_id": n, "file_name": f"sa_{n}.jpg", "width": 24, "height": 16}}
        row["annotations"] = [{"id": n, "segmentation": {"size": [16, 24]}, "area": 9}]  # type: ignore
        members += [(f"sa_{n}.jpg", n), (f"sa_{n}.json", json.dumps(row).encode())]
    raw.tar("sa_000000.tar", members)
    return packed(*(Sample((n,), ()) for n in N), says=(("no text", 8),)), refused("text")


@layout("tars in folders, of members in folders")
def tar_folders(raw: Raw) -> tuple[Fate, ...]:
    samples = _pairs(raw, "a/part-0.tar", "train/images/{n:04d}")
    samples += _pairs(raw, "b/part-1.tar", "./{n}", range(20, 28))
    return packed(*samples), refused("give that folder")


@layout("tars with the index files of other readers")
def tar_sidecars(raw: Raw) -> Fate:
    samples = _pairs(raw, "part-0000.tar")
    raw.text("part-0000.idx", "v1.2 16\njpg 512 300 0000.jpg\n")
    raw.json("index.json", {"__kind__": "wids-shard-index-v1", "shardlist": []})
    raw.text(".nv-meta/dataset.yaml", "sample_type: CaptioningSample\n")
    return packed(*samples)
