"""Real sources of questions and answers, as their users have them on disk."""

from .raw import Raw
from .table import Fate, Has, N, chat, packed, source
from .templates import NUMBER, Tagged, cell, chats, each, filled, has, images


# https://visualqa.org/download.html
@source("VQAv2")
def vqa(raw: Raw) -> Fate:
    images(raw, "train2014/COCO_train2014_{n:012d}.jpg")
    asked, given = [], []
    for m in range(2):
        about = {"image_id": NUMBER, "question_id": Tagged("n", f"10n+{m}")}
        asked.append(about | {"question": f"What {m} of {{n}}?"})
        words = ("yes {n}", "yes {n}", "no {n}")
        said = [
            {"answer": word, "answer_confidence": "yes", "answer_id": i}
            for i, word in enumerate(words, 1)
        ]
        about |= {"question_type": "what", "answers": said, "answer_type": "other"}
        given.append(about | {"multiple_choice_answer": "yes {n}"})
    head = {"info": {}, "data_subtype": "train2014", "license": {}, "task_type": "Open-Ended"}
    head |= {"data_type": "mscoco"}
    questions, answers = head | {"questions": each(*asked)}, head | {"annotations": each(*given)}
    raw.write("v2_OpenEnded_mscoco_train2014_questions.json", questions)
    raw.write("v2_mscoco_train2014_annotations.json", answers)
    return packed(*chats("What 0 of {n}?", "yes {n}", "What 1 of {n}?", "yes {n}"))


# https://github.com/allenai/aokvqa: images of COCO 2017 by their ids.
@source("A-OKVQA", image_column="train2017/{image_id:012d}.jpg")
def aokvqa(raw: Raw) -> Fate:
    images(raw, "train2017/{n:012d}.jpg")
    row = {"split": "train", "image_id": NUMBER, "question_id": "q{n}", "question": "What is {n}?"}
    row |= {"choices": ["red", "blue {n}"], "correct_choice_idx": 1}
    row |= {"direct_answers": ["blue {n}", "sky"], "difficult_direct_answer": False}
    raw.write("aokvqa_v1p0_train.json", each(row | {"rationales": ["It is so."]}))
    return packed(*chats(has("What is {n}?", "red", "blue {n}"), has("blue {n}")))


# https://cs.stanford.edu/people/dorarad/gqa/download.html
@source("GQA")
def gqa(raw: Raw) -> Fate:
    images(raw, "images/{n+2000}.jpg")
    entry = {"semantic": [], "imageId": "{n+2000}", "answer": "no {n}", "isBalanced": True}
    entry |= {"question": "Is it {n}?", "fullAnswer": "No, it is {n}."}
    entries = filled(Tagged("keys", {"{n:08d}": entry}), 0)
    raw.write("train_balanced_questions.json", entries)
    return packed(*chats("Is it {n}?", "no {n}"))


# https://textvqa.org/dataset/
@source("TextVQA")
def textvqa(raw: Raw) -> Fate:
    images(raw, "train_images/{n:016x}.jpg")
    row = {"question": "what brand is {n}?", "image_id": "{n:016x}", "image_classes": ["Phone"]}
    row |= {"flickr_300k_url": "http://a.b/c.jpg", "question_id": NUMBER, "set_name": "train"}
    row |= {"answers": ["nokia {n}", "nokia {n}", "toshiba"], "question_tokens": ["what"]}
    raw.write("TextVQA_0.5.1_train.json", {"dataset_type": "train", "data": each(row)})
    return packed(*chats("what brand is {n}?", "nokia {n}"))


# https://rrc.cvc.uab.es/?ch=17&com=downloads: questions beside the folder `documents`.
@source("DocVQA")
def docvqa(raw: Raw) -> Fate:
    images(raw, "documents/snbx0223_{n}.png")
    row = {"questionId": NUMBER, "question": "What is date {n}?", "docId": NUMBER}
    row |= {"image": "documents/snbx0223_{n}.png", "ucsf_document_id": "snbx0223"}
    row |= {"ucsf_document_page_no": "{n}", "answers": ["1/{n}/93"], "data_split": "train"}
    whole = {"dataset_name": "SP-DocVQA", "dataset_version": "1.0", "dataset_split": "train"}
    raw.write("train_v1.0_withQT.json", whole | {"data": each(row)})
    return packed(*chats("What is date {n}?", "1/{n}/93"))


# https://github.com/vis-nlp/ChartQA: two files of questions, images in `png`.
@source("ChartQA", include="train_human.json")
def chartqa(raw: Raw) -> Fate:
    images(raw, "png/{n:05d}.png")
    for n in N:
        raw.text(f"tables/{n:05d}.csv", "Year,Value\n2001,5\n")
        raw.write(f"annotations/{n:05d}.json", {"type": "v_bar", "models": [{"name": "bar"}]})
    rows = each({"imgname": "{n:05d}.png", "query": "How many {n}?", "label": "{n}0"})
    raw.write("train_human.json", rows)
    raw.write("train_augmented.json", rows[:4])
    return packed(*chats("How many {n}?", "{n}0"))


# https://huggingface.co/datasets/lmms-lab/ai2d: the answer is the number of an option, as text.
@source("AI2D")
def ai2d(raw: Raw) -> Fate:
    row = {"question": "Which letter is {n}?", "options": ["seed", "fruit {n}", "root", "leaf"]}
    row |= {"answer": "1", "image": cell("image")}
    raw.write("data/test-00000-of-00001.parquet", each(row, raw=raw))
    return packed(*chats(has("Which letter is {n}?", "seed", "fruit {n}"), has("fruit {n}")))


# https://huggingface.co/datasets/derek-thomas/ScienceQA: half of the rows are without an image.
@source("ScienceQA")
def scienceqa(raw: Raw) -> tuple[Fate, ...]:
    rows, samples = [], []
    for n in N:
        hint = [f"Look at {n}."] if n % 4 else []
        row = {"image": raw.cell(n, "image") if n % 2 else None, "hint": "".join(hint)}
        row |= {"question": f"Which is {n}?", "choices": ["west", f"east {n}"], "answer": 1}
        row |= {"grade": "grade2", "subject": "natural science", "topic": "geography"}
        row |= {"task": "closed choice", "skill": "Read a map", "lecture": "Maps."}
        rows.append(row | {"solution": "It is east."})
        asked = Has(*hint, f"Which is {n}?", "west", f"east {n}")
        samples.append(chat((n,) if n % 2 else (), asked, Has(f"east {n}")))
    raw.write("data/train-00000-of-00001-1028f23e353fbe3e.parquet", rows)
    return packed(*samples), packed(*samples[1::2], rejects=4, says=(("no image", 4),))


# https://huggingface.co/datasets/MMMU/MMMU: up to seven images, marked in the question; options as
# the text of a Python list.
@source("MMMU")
def mmmu(raw: Raw) -> Fate:
    row = {"options": "['$6', '$7{n}']", "explanation": "", "answer": "B"}
    row |= {f"image_{m}": None for m in range(1, 8)} | {"image_1": cell("image_1", "2n")}
    row |= {"img_type": "['Tables']", "topic_difficulty": "Medium", "subfield": "Managerial"}
    row |= {"question_type": "multiple-choice"}
    one = row | {"id": "validation_{n}", "question": "<image 1> Which of {n}?"}
    two = row | {"id": "validation_{n+10}", "question": "<image 1> <image 2> Which of {n+10}?"}
    two |= {"image_2": cell("image_2", "2n+1")}
    raw.write("Accounting/validation-00000-of-00001.parquet", each(one, two, raw=raw))
    answer = has("$7{n}")
    of_two = chats(has("Which of {n+10}?", "$6", "$7{n}"), answer, shown=("2n", "2n+1"))
    return packed(*chats(has("Which of {n}?", "$6", "$7{n}"), answer, shown=("2n",)), *of_two)


# https://cs.stanford.edu/people/jcjohns/clevr/: CLEVR_v1.0.zip, one split of it.
@source("CLEVR", include="questions/CLEVR_train_questions.json")
def clevr(raw: Raw) -> Fate:
    for split, numbers in (("train", N), ("val", range(20, 28))):
        name = f"CLEVR_{split}_{{n:06d}}.png"
        images(raw, f"images/{split}/{name}", numbers=numbers)
        row = {"image_index": NUMBER, "program": [], "question_index": NUMBER, "answer": "{n}"}
        row |= {"image_filename": name, "question_family_index": 2, "split": split}
        rows = each(row | {"question": "How many cubes in {n}?"}, numbers=numbers)
        raw.write(f"questions/CLEVR_{split}_questions.json", {"info": {}, "questions": rows})
        raw.write(f"scenes/CLEVR_{split}_scenes.json", {"info": {}, "scenes": [{"objects": []}]})
    return packed(*chats("How many cubes in {n}?", "{n}"))


# https://huggingface.co/datasets/allenai/pixmo-docs: two lists over the same questions.
@source("PixMo-Docs", map="image=image,user=questions.question,assistant=questions.answer")
def pixmo_docs(raw: Raw) -> Fate:
    texts = {"question": ["First {n}?", "Second?"], "answer": ["One {n}", "Two {n}"]}
    row = {"image": cell("image"), "image_id": "{n}", "questions": texts}
    raw.write("charts/train-00000-of-00001.parquet", each(row, raw=raw))
    return packed(*chats("First {n}?", "One {n}", "Second?", "Two {n}"))
