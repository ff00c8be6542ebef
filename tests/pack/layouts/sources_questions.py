"""Real sources of questions and answers, as their users have them on disk."""

from typing import Any

from .raw import Raw
from .table import Fate, Has, N, Sample, chat, packed, source


# https://visualqa.org/download.html
@source("VQAv2")
def vqa(raw: Raw) -> Fate:
    asked, given, samples = [], [], []
    for n in N:
        raw.image(f"train2014/COCO_train2014_{n:012d}.jpg", n)
        for m in range(2):
            about = {"image_id": n, "question_id": 10 * n + m}
            asked.append(about | {"question": f"What {m} of {n}?"})
            words = (f"yes {n}", f"yes {n}", f"no {n}")
            said = [
                {"answer": word, "answer_confidence": "yes", "answer_id": i}
                for i, word in enumerate(words, 1)
            ]
            about |= {"question_type": "what", "answer_type": "other"}
            given.append(about | {"answers": said, "multiple_choice_answer": f"yes {n}"})
        samples.append(chat(n, f"What 0 of {n}?", f"yes {n}", f"What 1 of {n}?", f"yes {n}"))
    head = {"info": {}, "data_subtype": "train2014", "license": {}, "task_type": "Open-Ended"}
    head |= {"data_type": "mscoco"}
    raw.json("v2_OpenEnded_mscoco_train2014_questions.json", head | {"questions": asked})
    raw.json("v2_mscoco_train2014_annotations.json", head | {"annotations": given})
    return packed(*samples)


# https://github.com/allenai/aokvqa: images of COCO 2017 by their ids.
@source("A-OKVQA", image_column="train2017/{image_id:012d}.jpg")
def aokvqa(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        raw.image(f"train2017/{n:012d}.jpg", n)
        row: dict[str, Any] = {"split": "train", "image_id": n, "question_id": f"q{n}"}
        row |= {"question": f"What is {n}?", "choices": ["red", f"blue {n}"]}
        row |= {"correct_choice_idx": 1, "direct_answers": [f"blue {n}", "sky"]}
        rows.append(row | {"difficult_direct_answer": False, "rationales": ["It is so."]})
        samples.append(chat(n, Has(f"What is {n}?", "red", f"blue {n}"), Has(f"blue {n}")))
    raw.json("aokvqa_v1p0_train.json", rows)
    return packed(*samples)


# https://cs.stanford.edu/people/dorarad/gqa/download.html
@source("GQA")
def gqa(raw: Raw) -> Fate:
    entries, samples = {}, []
    for n in N:
        raw.image(f"images/{2000 + n}.jpg", n)
        entry: dict[str, Any] = {"semantic": [], "imageId": str(2000 + n), "answer": f"no {n}"}
        entry |= {"question": f"Is it {n}?", "fullAnswer": f"No, it is {n}.", "isBalanced": True}
        entries[f"{n:08d}"] = entry
        samples.append(chat(n, f"Is it {n}?", f"no {n}"))
    raw.json("train_balanced_questions.json", entries)
    return packed(*samples)


# https://textvqa.org/dataset/
@source("TextVQA")
def textvqa(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        raw.image(f"train_images/{n:016x}.jpg", n)
        row: dict[str, Any] = {"question": f"what brand is {n}?", "image_id": f"{n:016x}"}
        row |= {"image_classes": ["Phone"], "flickr_300k_url": "http://a.b/c.jpg"}
        row |= {"question_id": n, "answers": [f"nokia {n}", f"nokia {n}", "toshiba"]}
        rows.append(row | {"set_name": "train", "question_tokens": ["what"]})
        samples.append(chat(n, f"what brand is {n}?", f"nokia {n}"))
    raw.json("TextVQA_0.5.1_train.json", {"dataset_type": "train", "data": rows})
    return packed(*samples)


# https://rrc.cvc.uab.es/?ch=17&com=downloads: questions beside the folder `documents`.
@source("DocVQA")
def docvqa(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        path = raw.image(f"documents/snbx0223_{n}.png", n)
        row: dict[str, Any] = {"questionId": n, "question": f"What is date {n}?", "image": path}
        row |= {"docId": n, "ucsf_document_id": "snbx0223", "ucsf_document_page_no": str(n)}
        rows.append(row | {"answers": [f"1/{n}/93"], "data_split": "train"})
        samples.append(chat(n, f"What is date {n}?", f"1/{n}/93"))
    whole = {"dataset_name": "SP-DocVQA", "dataset_version": "1.0", "dataset_split": "train"}
    raw.json("train_v1.0_withQT.json", whole | {"data": rows})
    return packed(*samples)


# https://github.com/vis-nlp/ChartQA: two files of questions, images in `png`.
@source("ChartQA", include="train_human.json")
def chartqa(raw: Raw) -> Fate:
    rows = []
    for n in N:
        raw.image(f"png/{n:05d}.png", n)
        raw.text(f"tables/{n:05d}.csv", "Year,Value\n2001,5\n")
        raw.json(f"annotations/{n:05d}.json", {"type": "v_bar", "models": [{"name": "bar"}]})
        rows.append({"imgname": f"{n:05d}.png", "query": f"How many {n}?", "label": f"{n}0"})
    raw.json("train_human.json", rows)
    raw.json("train_augmented.json", rows[:4])
    return packed(*(chat(n, f"How many {n}?", f"{n}0") for n in N))


# https://huggingface.co/datasets/lmms-lab/ai2d: the answer is the number of an option, as text.
@source("AI2D")
def ai2d(raw: Raw) -> Fate:
    rows = [
        {
            "question": f"Which letter is {n}?",
            "options": ["seed", f"fruit {n}", "root", "leaf"],
            "answer": "1",
            "image": raw.cell(n, "image"),
        }
        for n in N
    ]
    raw.parquet("data/test-00000-of-00001.parquet", rows)
    asked = [Has(f"Which letter is {n}?", "seed", f"fruit {n}") for n in N]
    return packed(*(chat(n, asked[n], Has(f"fruit {n}")) for n in N))


# https://huggingface.co/datasets/derek-thomas/ScienceQA: half of the rows are without an image.
@source("ScienceQA")
def scienceqa(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = [], []
    for n in N:
        row: dict[str, Any] = {"image": raw.cell(n, "image") if n % 2 else None}
        row |= {"question": f"Which is {n}?", "choices": ["west", f"east {n}"], "answer": 1}
        row |= {"hint": f"Look at {n}." if n % 4 else "", "task": "closed choice"}
        row |= {"grade": "grade2", "subject": "natural science", "topic": "geography"}
        rows.append(row | {"skill": "Read a map", "lecture": "Maps.", "solution": "It is east."})
        hint = [f"Look at {n}."] if n % 4 else []
        asked = Has(*hint, f"Which is {n}?", "west", f"east {n}")
        samples.append(chat((n,) if n % 2 else (), asked, Has(f"east {n}")))
    raw.parquet("data/train-00000-of-00001-1028f23e353fbe3e.parquet", rows)
    return packed(*samples), packed(*samples[1::2], rejects=4, says=(("no image", 4),))


# https://huggingface.co/datasets/MMMU/MMMU: up to seven images, marked in the question; options as
# the text of a Python list.
@source("MMMU")
def mmmu(raw: Raw) -> Fate:
    rows: list[dict[str, Any]] = []
    samples: list[Sample] = []
    for n in N:
        numbers = (2 * n, 2 * n + 1) if n % 2 else (2 * n,)
        row: dict[str, Any] = {"id": f"validation_Accounting_{n}"}
        marks = " ".join(f"<image {m + 1}>" for m in range(len(numbers)))
        row |= {"question": f"{marks} Which of {n}?", "options": f"['$6', '$7{n}']"}
        row |= {"explanation": "", "answer": "B"}
        for m in range(7):
            held = raw.cell(numbers[m], f"image_{m + 1}") if m < len(numbers) else None
            row[f"image_{m + 1}"] = held
        row |= {"img_type": "['Tables']", "topic_difficulty": "Medium", "subfield": "Managerial"}
        rows.append(row | {"question_type": "multiple-choice"})
        samples.append(chat(numbers, Has(f"Which of {n}?", "$6", f"$7{n}"), Has(f"$7{n}")))
    raw.parquet("Accounting/validation-00000-of-00001.parquet", rows)
    return packed(*samples)


# https://cs.stanford.edu/people/jcjohns/clevr/: CLEVR_v1.0.zip, one split of it.
@source("CLEVR", include="questions/CLEVR_train_questions.json")
def clevr(raw: Raw) -> Fate:
    for split, start in (("train", 0), ("val", 20)):
        rows = []
        for n in range(start, start + 8):
            name = f"CLEVR_{split}_{n:06d}.png"
            raw.image(f"images/{split}/{name}", n)
            row: dict[str, Any] = {"image_index": n, "program": [], "question_index": n}
            row |= {"image_filename": name, "question_family_index": 2, "split": split}
            rows.append(row | {"answer": f"{n}", "question": f"How many cubes in {n}?"})
        raw.json(f"questions/CLEVR_{split}_questions.json", {"info": {}, "questions": rows})
        raw.json(f"scenes/CLEVR_{split}_scenes.json", {"info": {}, "scenes": [{"objects": []}]})
    return packed(*(chat(n, f"How many cubes in {n}?", f"{n}") for n in N))


# https://huggingface.co/datasets/allenai/pixmo-docs: two lists over the same questions.
@source("PixMo-Docs", map="image=image,user=questions.question,assistant=questions.answer")
def pixmo_docs(raw: Raw) -> Fate:
    rows = []
    for n in N:
        texts = {"question": [f"First {n}?", "Second?"], "answer": [f"One {n}", f"Two {n}"]}
        rows.append({"image": raw.cell(n, "image"), "image_id": f"{n}", "questions": texts})
    raw.parquet("charts/train-00000-of-00001.parquet", rows)
    samples = [chat(n, f"First {n}?", f"One {n}", "Second?", f"Two {n}") for n in N]
    return packed(*samples)
