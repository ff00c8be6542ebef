"""Further forms of the real sources: not downloaded, of several parts, of earlier versions."""

from __future__ import annotations

from typing import Any

from .raw import Raw
from .sources_chats import llava
from .table import Fate, N, chat, layout, packed


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
