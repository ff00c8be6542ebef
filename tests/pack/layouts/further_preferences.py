"""Preference pairs, in the layouts of TRL, RLAIF-V, LLaMA-Factory and ms-swift."""

from __future__ import annotations

import json
from typing import Any

from .raw import Raw
from .sources_chats import openai
from .table import Fate, N, Sample, chat, layout, packed, refused


def said(n: int) -> tuple[str, str, str]:
    return f"What {n}?", f"It is {n}.", f"Nothing like {n}."


def pair(n: int, *, image: bool = True, asked: str = "") -> Sample:
    question, chosen, rejected = said(n)
    numbers = (n,) if image else ()
    return Sample(
        numbers, (("user", asked or question), ("chosen", chosen), ("rejected", rejected))
    )


def parts(role: str, text: str, *, image: bool = False) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": text}]
    return [{"role": role, "content": [{"type": "image", "text": None}] * image + content}]


# https://huggingface.co/datasets/HuggingFaceH4/rlaif-v_formatted, .../trl-lib/rlaif-v
@layout("TRL's RLAIF-V")
def trl(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        rows.append(
            {
                "images": [raw.cell(n, "images")],
                "prompt": parts("user", question, image=True),
                "chosen": parts("assistant", chosen),
                "rejected": parts("assistant", rejected),
            }
        )
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return packed(*(pair(n, asked=f"<image>{said(n)[0]}") for n in N))


# https://huggingface.co/datasets/openbmb/RLAIF-V-Dataset; SPA-VL has the same columns
@layout("RLAIF-V")
def rlaif_v(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        row: dict[str, Any] = {"ds_name": "RLAIF-V", "image": raw.cell(n, "image")}
        row |= {"question": question, "chosen": chosen, "rejected": rejected, "idx": str(n)}
        rows.append(row | {"origin_split": json.dumps({"model": "m"}), "image_path": f"v/{n}.jpg"})
    raw.parquet("RLAIF-V-Dataset_000.parquet", rows)
    return packed(*map(pair, N))


# https://huggingface.co/docs/trl/dataset_formats: preference with an implicit prompt
@layout("preferences as whole conversations")
def implicit(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        row: dict[str, Any] = {"images": [raw.cell(n, "images")], "score_chosen": 0.5 + n}
        rows.append(
            row | {"chosen": openai(question, chosen), "rejected": openai(question, rejected)}
        )
    raw.parquet("train-00000-of-00001.parquet", rows)
    return packed(*map(pair, N))


# https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md, Preference Dataset
@layout("LLaMA-Factory's preferences")
def llama_factory(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        rows.append(
            {
                "conversations": [{"from": "human", "value": f"<image>{question}"}],
                "chosen": {"from": "gpt", "value": chosen},
                "rejected": {"from": "gpt", "value": rejected},
                "images": [raw.image(f"images/{n}.jpg", n)],
            }
        )
    raw.json("dpo.json", rows)
    return packed(*(pair(n, asked=f"<image>{said(n)[0]}") for n in N))


@layout("preferences of text alone in JSON lines")
def text_alone(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        rows.append({"prompt": question, "chosen": chosen, "rejected": rejected})
    raw.given = raw.jsonl("pairs.jsonl", rows)
    return packed(*(pair(n, image=False) for n in N))


@layout("preferences in CSV beside their images")
def table(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        path = raw.image(f"images/{n}.jpg", n)
        rows.append({"image": path, "question": question, "chosen": chosen, "rejected": rejected})
    raw.csv("pairs.csv", rows)
    return packed(*map(pair, N))


@layout("preferences as JSON beside each image")
def beside(raw: Raw) -> Fate:
    for n in N:
        question, chosen, rejected = said(n)
        raw.image(f"{n}.jpg", n)
        record = {"question": question, "chosen": chosen, "rejected": rejected}
        raw.json(f"{n}.json", record)
    return packed(*map(pair, N))


# https://github.com/modelscope/ms-swift, docs, Custom-dataset.md: RLHF. It trains others as well.
@layout("ms-swift's preferences")
def ms_swift(raw: Raw) -> Fate:
    rows = []
    for n in N:
        question, chosen, rejected = said(n)
        path = raw.image(f"{n}.jpg", n)
        turns = openai(f"<image>{question}", chosen)
        rows.append({"messages": turns, "rejected_response": rejected, "images": [path]})
    raw.jsonl("data.jsonl", rows)
    return packed(*(chat(n, f"<image>{said(n)[0]}", said(n)[1]) for n in N))


# https://huggingface.co/datasets/MMInstruction/VLFeedback: answers of several models to a prompt,
# each with its ratings. The prompt alone is no caption.
@layout("VLFeedback")
def vlfeedback(raw: Raw) -> Fate:
    rows = []
    for n in N:
        ratings = {"Helpfulness": {"Rating": "4", "Rationale": "It answers."}}
        answers = [
            {"annotations": ratings, "model": model, "response": f"{model} says {n}"}
            for model in ("one", "other")
        ]
        row = {"id": str(n), "prompt": f"What is {n}?", "models": ["one", "other"]}
        rows.append({**row, "image": raw.image(f"images/{n}.jpg", n), "completions": answers})
    raw.jsonl("train.jsonl", rows)
    return refused("'prompt', 'completions'", "user=prompt,assistant=completions")
