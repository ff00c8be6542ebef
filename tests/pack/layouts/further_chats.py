"""Further forms of the real sources: not downloaded, of several parts, of earlier versions."""

from __future__ import annotations

from typing import Any

from .raw import Raw
from .sources_chats import llava
from .table import Fate, N, Sample, chat, layout, packed, refused


@layout("OBELICS, not downloaded")
def obelics_urls(raw: Raw) -> Fate:
    rows = []
    for n in N:
        row: dict[str, Any] = {"images": [f"https://a.b/{n}.jpg", None], "metadata": "[]"}
        rows.append(row | {"general_metadata": "{}", "texts": [None, f"Words of {n}."]})
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return refused("URL|download")


@layout("PixMo-Cap, not downloaded")
def pixmo_cap_urls(raw: Raw) -> Fate:
    rows = [
        {"image_url": f"https://a.b/{n}.jpg", "caption": f"It is {n}.", "transcripts": ["well"]}
        for n in N
    ]
    raw.parquet("data/train-00000-of-00004.parquet", rows[:2])
    raw.parquet("data/train-00001-of-00004.parquet", rows[2:4])
    raw.parquet("data/train-00002-of-00004.parquet", rows[4:6])
    raw.parquet("data/train-00003-of-00004.parquet", rows[6:])
    return refused("URL|download")


# https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K: bare names of COCO's images.
@layout("LLaVA-Instruct-150K beside COCO")
def llava_instruct(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in range(12):
        raw.image(f"coco/train2017/{n:012d}.jpg", n)
        raw.image(f"coco/val2017/{n + 20:012d}.jpg", n + 20)
        texts = (f"<image>\nWhat is {n}?", f"A bus {n}.")
        row = {"id": f"{n:012d}", "image": f"{n:012d}.jpg", "conversations": llava(*texts)}
        rows.append(row)
        samples.append(chat(n, f"<image>What is {n}?", f"A bus {n}."))
    raw.json("llava_instruct_150k.json", rows)
    return packed(*samples, says=(("image", 12),))


def _parts(raw: Raw, start: int, name: str) -> list[Sample]:
    rows, samples = [], []
    for n in range(start, start + 6):
        turns = llava("<image>\nWhich?", f"The {n}.")
        row = {"id": str(n), "image": raw.cell(n, "image", f"{name}#{n - start}")}
        rows.append(row | {"conversations": turns, "data_source": name})
        samples.append(chat(n, "<image>Which?", f"The {n}."))
    raw.parquet(f"{name}/train-00000-of-00001.parquet", rows)
    return samples


@layout("LLaVA-OneVision-Data of several configurations", include="ai2d(internvl)/*")
def onevision_parts(raw: Raw) -> Fate:
    samples = _parts(raw, 0, "ai2d(internvl)")
    _parts(raw, 20, "mapqa(cauldron,llava_format)")
    raw.held = raw.held[:6]
    return packed(*samples, says=("mapqa",))


@layout("LLaVA-OneVision-Data, all configurations", include="*.parquet")
def onevision_all(raw: Raw) -> Fate:
    samples = _parts(raw, 0, "ai2d(internvl)")
    return packed(*samples, *_parts(raw, 20, "mapqa(cauldron,llava_format)"))


# https://github.com/modelscope/ms-swift, version 2: a query and its response, turns before them in
# `history`, which are learnt too.
@layout("ms-swift query and response")
def query_and_response(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        row: dict[str, Any] = {"query": f"And {n}?", "response": f"That {n}."}
        row |= {"history": [[f"First {n}?", f"This {n}."]], "system": "Be brief."}
        rows.append(row | {"images": [raw.image(f"images/{n}.jpg", n)]})
        texts = (f"First {n}?", f"This {n}.", f"And {n}?", f"That {n}.")
        samples.append(chat(n, *texts, system="Be brief."))
    raw.jsonl("data.jsonl", rows)
    return packed(*samples)


@layout("LLaVA-Pretrain beside its archive")
def pretrain_and_zip(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        name = f"{n % 2:05d}/{n:09d}.jpg"
        raw.image(name, n)
        rows.append(
            {"id": str(n), "image": name, "conversations": llava("Say.\n<image>", f"a {n}")}
        )
        samples.append(chat(n, "Say.<image>", f"a {n}"))
    raw.json("blip_laion_cc_sbu_558k.json", rows)
    raw.other("images.zip", b"PK\x03\x04" + bytes(99))
    return packed(*samples, says=("images.zip",))
