"""Real sources of conversations, as their users have them on disk."""

from typing import Any

from .raw import Raw
from .table import Fate, N, chat, packed, refused, source


def llava(*texts: str) -> list[dict[str, str]]:
    """Return turns as LLaVA writes them."""
    roles = ("human", "gpt") * (len(texts) // 2)
    return [{"from": role, "value": text} for role, text in zip(roles, texts, strict=True)]


def what_turns(n: int) -> list[dict[str, str]]:
    """Return the turns of `CHATS[n]` as LLaVA writes them."""
    return llava("<image>\nWhat?", f"It is {n}.")


def openai(*texts: Any) -> list[dict[str, Any]]:
    roles = ("user", "assistant") * (len(texts) // 2)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


# https://github.com/haotian-liu/LLaVA, "Visual Instruction Tuning": the folders in
# `playground/data`. Records of ShareGPT have no image.
@source("LLaVA-1.5 mix665k")
def mix665k(raw: Raw) -> Fate:
    folders = ("coco/train2017", "gqa/images", "ocr_vqa/images", "textvqa/train_images")
    folders += ("vg/VG_100K", "vg/VG_100K_2")
    rows: list[Any] = []
    samples = []
    for n in range(12):
        path = raw.image(f"{folders[n % 6]}/{n:012d}.jpg", n)
        texts = (f"<image>\nWhat is in picture {n}?", f"Thing {n}.", "More?", f"More of {n}.")
        rows.append({"id": f"{n:012d}", "image": path, "conversations": llava(*texts)})
        samples.append(chat(n, f"<image>What is in picture {n}?", *texts[1:]))
    rows.insert(3, {"id": "wgByO4Y_0", "model": "", "conversations": llava("Hi", "Hello.")})
    raw.json("llava_v1_5_mix665k.json", rows)
    return packed(*samples, chat((), "Hi", "Hello."))


# https://huggingface.co/datasets/liuhaotian/LLaVA-Pretrain: images.zip unpacked into `images`, as
# `scripts/v1_5/pretrain.sh` has it, beside the table of the same images.
@source("LLaVA-Pretrain")
def llava_pretrain(raw: Raw) -> Fate:
    rows, meta, samples = [], [], []
    for n in range(12):
        name = f"{n % 3:05d}/{n:05d}{n:04d}.jpg"
        raw.image(f"images/{name}", n)
        texts = ("Render a clear summary of the photo.\n<image>", f"photo number {n}")
        if n % 2:
            texts = ("<image>\nWrite a terse summary.", texts[1])
        key = f"{n:09d}"
        rows.append({"id": key, "image": name, "conversations": llava(*texts)})
        meta.append({"id": key, "image": name, "blip_caption": f"a {n}", "url": "http://a.b/c"})
        samples.append(chat(n, texts[0].replace("\n", ""), texts[1]))
    raw.json("blip_laion_cc_sbu_558k.json", rows)
    raw.json("blip_laion_cc_sbu_558k_meta.json", meta)
    raw.text("README.md", "# LLaVA Visual Instruct Pretrain\n")
    return packed(*samples)


# https://github.com/InternLM/InternLM-XComposer, projects/ShareGPT4V/docs/Data.md.
@source("ShareGPT4V", include="sharegpt4v/sharegpt4v_instruct_gpt4-vision_cap100k.json")
def sharegpt4v(raw: Raw) -> Fate:
    folders = ("coco/train2017", "sam/images", "llava/llava_pretrain/images", "wikiart/images")
    rows, samples = [], []
    for n in range(12):
        path = raw.image(f"{folders[n % 4]}/{n:06d}.jpg", n)
        texts = (f"What do you see in {n}?\n<image>", f"In the image there is {n}.")
        rows.append({"id": f"{n}", "image": path, "conversations": llava(*texts)})
        samples.append(chat(n, texts[0].replace("\n", ""), texts[1]))
    raw.json("sharegpt4v/sharegpt4v_instruct_gpt4-vision_cap100k.json", rows)
    raw.json("sharegpt4v/share-captioner_coco_lcs_sam_1246k_1107.json", rows[:6])
    raw.json("sharegpt4v/sharegpt4v_mix665k_cap23k_coco-ap9k_lcs3k_sam9k_div2k.json", rows[:4])
    return packed(*samples)


# https://huggingface.co/datasets/lmms-lab/LLaVA-OneVision-Data: id, image, conversations and
# data_source; a row may be without an image.
@source("LLaVA-OneVision-Data")
def onevision(raw: Raw) -> Fate:
    for part in range(2):
        rows: list[dict[str, Any]] = [
            {
                "id": str(n),
                "image": raw.cell(n, "image"),
                "conversations": llava("<image>\nWhich?", f"The {n}."),
                "data_source": "ai2d(internvl)",
            }
            for n in range(part * 5, part * 5 + 5)
        ]
        if part:
            rows[0] |= {"image": None, "conversations": llava("2 + 2?", "4.")}
            raw.held = [item for item in raw.held if item.number != 5]
        raw.parquet(f"ai2d(internvl)/train-0000{part}-of-00002.parquet", rows)
    samples = [chat(n, "<image>Which?", f"The {n}.") for n in range(10) if n != 5]
    return packed(*samples, chat((), "2 + 2?", "4."))


# https://huggingface.co/datasets/lmms-lab/LLaVA-Video-178K: video, and `<image>` in the text.
@source("LLaVA-Video-178K")
def llava_video(raw: Raw) -> Fate:
    rows = []
    for n in N:
        path = raw.other(f"academic_source/youcook2/split_{n}.mp4")
        texts = ("<image>\nWhat happens?", f"Someone cooks {n}.")
        row = {"id": f"{n}", "conversations": llava(*texts), "data_source": "0_30_s_academic"}
        rows.append(row | {"video": path})
    raw.json("0_30_s_academic_v0_1_cap_processed.json", rows)
    return refused("video")


# https://huggingface.co/datasets/nyu-visionx/Cambrian-10M: JSONL beside the unpacked folders of
# images; some records are text alone, with an empty image or none.
@source("Cambrian-10M", include="Cambrian7M_withsystemprompt.jsonl")
def cambrian(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in range(10):
        path = raw.image(f"{('coco', 'geo170k', 'chartqa')[n % 3]}/train/{n}.png", n)
        texts = (f"<image>\nHow many in {n}?", f"{n}")
        rows.append({"id": str(n), "image": path, "conversations": llava(*texts)})
        rows[-1]["source"] = "cambrian.json"
        samples.append(chat(n, f"<image>How many in {n}?", f"{n}"))
    rows.insert(2, {"id": "t", "conversations": llava("Sum?", "3"), "source": "orca.json"})
    raw.jsonl("Cambrian7M_withsystemprompt.jsonl", rows)
    raw.jsonl("Cambrian10M.jsonl", rows)
    return packed(*samples, chat((), "Sum?", "3"))


# https://huggingface.co/datasets/HuggingFaceM4/the_cauldron: a folder a subset.
@source("The Cauldron")
def cauldron(raw: Raw) -> Fate:
    rows = [
        {
            "images": [raw.cell(n, "images")],
            "texts": [
                {"user": f"Question {n}?", "assistant": f"Choice {n}.", "source": "AI2D"},
                {"user": "And?", "assistant": f"That {n}.", "source": "AI2D"},
            ],
        }
        for n in N
    ]
    raw.parquet("ai2d/train-00000-of-00001-2ce340398c113b79.parquet", rows)
    return packed(*(chat(n, f"Question {n}?", f"Choice {n}.", "And?", f"That {n}.") for n in N))


# https://huggingface.co/datasets/HuggingFaceM4/Docmatix: pages of a document, and questions.
@source("Docmatix")
def docmatix(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        numbers = (2 * n, 2 * n + 1)
        texts = [{"user": f"Page {n}?", "assistant": f"Two {n}.", "source": "PDFA key: 1"}]
        rows.append({"images": [raw.cell(m, "images") for m in numbers], "texts": texts})
        samples.append(chat(numbers, f"Page {n}?", f"Two {n}."))
    raw.parquet("data/train-00000-of-00002.parquet", rows[:4])
    raw.parquet("data/train-00001-of-00002.parquet", rows[4:])
    return packed(*samples)


# https://huggingface.co/datasets/lmms-lab/M4-Instruct-Data: lists of images, the unpacked zips.
@source("M4-Instruct", include="m4_instruct_annotations.json")
def m4_instruct(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        numbers = (2 * n, 2 * n + 1)
        paths = [raw.image(f"spot-the-diff/{m}.png", m) for m in numbers]
        texts = ("Images: <image>\n<image>\nWhat differs?", f"The {n}.")
        row = {"sample_id": n, "conversations": llava(*texts), "image": paths}
        rows.append(row | {"choice_list": None, "metadata": {"split": "train"}})
        samples.append(chat(numbers, "Images:<image><image>What differs?", f"The {n}."))
    raw.json("m4_instruct_annotations.json", rows)
    video = {"sample_id": 0, "video": "a.mp4", "conversations": llava("<image>\nWhat?", "That.")}
    raw.json("m4_instruct_video.json", [video] * 3)
    return packed(*samples)


# https://github.com/OpenGVLab/InternVL, internvl_chat/shell/data: a meta file names the root and
# the annotation of each part.
@source("InternVL chat")
def internvl(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        raw.image(f"data/chartqa/train/png/{n}.png", n)
        texts = (f"<image>\nWhat is {n}?", f"Bar {n}.")
        row: dict[str, Any] = {"id": n, "image": f"train/png/{n}.png", "width": 24, "height": 16}
        rows.append(row | {"conversations": llava(*texts)})
        samples.append(chat(n, f"<image>What is {n}?", texts[1]))
    raw.jsonl("opensource/chartqa_train_18k.jsonl", rows)
    part = {"root": "data/chartqa/", "annotation": "opensource/chartqa_train_18k.jsonl"}
    meta = {"chartqa_train_18k": part | {"data_augment": False, "repeat_time": 1, "length": 8}}
    raw.json("internvl_finetune.json", meta)
    return packed(*samples)


# https://github.com/QwenLM/Qwen-VL, "Finetuning": the paths are in the text.
@source("Qwen-VL finetune")
def qwen_vl(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        path = raw.image(f"assets/{n}.jpeg", n)
        texts = (f"Picture 1: <img>{path}</img>\nWhat is {n}?", f"It is {n}.")
        turns = [("user", texts[0]), ("assistant", texts[1])]
        turns += [("user", "Frame it"), ("assistant", f"<ref>it</ref><box>({n},2),(3,4)</box>")]
        conversations = [{"from": role, "value": text} for role, text in turns]
        rows.append({"id": f"identity_{n + 2}", "conversations": conversations})
        asked = f"Picture 1:<image>What is {n}?"
        samples.append(chat(n, asked, texts[1], "Frame it", turns[3][1]))
    paths = [raw.image(f"assets/mm_tutorial/{n}.jpeg", n) for n in (20, 21)]
    marks = "\n".join(f"Picture {n + 1}: <img>{path}</img>" for n, path in enumerate(paths))
    for asked, answer in (("Hello", "I am Qwen-VL."), (f"{marks}\nWhich?", "Two cities.")):
        said = [{"from": "user", "value": asked}, {"from": "assistant", "value": answer}]
        rows.append({"id": "identity_0", "conversations": said})
    raw.json("qwen_finetune.json", rows)
    both = chat((20, 21), "Picture 1:<image>Picture 2:<image>Which?", "Two cities.")
    return packed(*samples, chat((), "Hello", "I am Qwen-VL."), both)


# https://github.com/QwenLM/Qwen3-VL, qwen-vl-finetune: a path or a list of paths in `image`.
@source("Qwen2.5-VL finetune")
def qwen25_vl(raw: Raw) -> Fate:
    rows: list[Any] = []
    samples = []
    for n in N:
        path = raw.image(f"images/{n}.jpg", n)
        rows.append({"image": path, "conversations": llava("<image>\nObject?", f"A {n}.")})
        samples.append(chat(n, "<image>Object?", f"A {n}."))
    paths = [raw.image(f"images/{n}.jpg", n) for n in (20, 21)]
    rows.append({"image": paths, "conversations": llava("<image>\n<image>\nBoth?", "Two.")})
    raw.json("single_and_multi.json", rows)
    return packed(*samples, chat((20, 21), "<image><image>Both?", "Two."))


# https://github.com/OpenBMB/MiniCPM-V, finetune/readme.md: turns of {role, content}; of several
# images, an object by their marks.
@source("MiniCPM-V finetune")
def minicpm(raw: Raw) -> Fate:
    rows: list[Any] = []
    samples = []
    for n in N:
        path = raw.image(f"images/{n}.jpg", n)
        turns = openai(f"<image>\nDesserts in {n}?", f"There are {n}.")
        rows.append({"id": str(n), "image": path, "conversations": turns})
        samples.append(chat(n, f"<image>Desserts in {n}?", f"There are {n}."))
    marks = {f"<image_{n:02d}>": raw.image(f"images/{20 + n}.jpg", 20 + n) for n in range(2)}
    turns = openai("Compare <image_01> with <image_00>.", "They differ.")
    rows.append({"id": "8", "image": marks, "conversations": turns})
    raw.json("vl_finetune_data.json", rows)
    return packed(*samples, chat((21, 20), "Compare<image>with<image>.", "They differ."))


# https://github.com/modelscope/ms-swift, docs, Custom-dataset.md.
@source("ms-swift")
def ms_swift(raw: Raw) -> Fate:
    rows, samples = [], []
    system = "You are a helpful and harmless assistant."
    for n in N:
        path = raw.image(f"pictures/{n}.jpg", n)
        turns = openai(f"<image>What is {n}?", f"An elephant {n}.")
        turns.insert(0, {"role": "system", "content": system})
        rows.append({"messages": turns, "images": [path]})
        samples.append(chat(n, f"<image>What is {n}?", f"An elephant {n}.", system=system))
    raw.jsonl("train.jsonl", rows)
    return packed(*samples)


# https://github.com/hiyouga/LLaMA-Factory, data/: the file is given, beside other demos and their
# media. The first record shows an image twice.
@source("LLaMA-Factory sharegpt")
def llama_factory(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        path = raw.image(f"mllm_demo_data/{n}.jpg", n)
        turns = openai(f"<image>Who is {n}?", f"Player {n}.", "What do they do?", f"Play {n}.")
        if n == 0:
            turns[2]["content"] += "<image>"
        rows.append({"messages": turns, "images": [path] * (2 if n == 0 else 1)})
        samples.append(chat((0, 0) if n == 0 else n, *(turn["content"] for turn in turns)))
    raw.json("mllm_demo.json", rows)
    sound = {
        "messages": openai("<audio>What is it?", "A bird."),
        "audios": ["mllm_demo_data/1.mp3"],
    }
    raw.json("mllm_audio_demo.json", [sound] * 3)
    raw.json("alpaca_en_demo.json", [{"instruction": "Hi", "input": "", "output": "Hello"}] * 3)
    raw.bytes("mllm_demo_data/1.mp3", b"ID3")
    raw.json("dataset_info.json", {"mllm_demo": {"file_name": "mllm_demo.json"}})
    raw.given = raw.folder / "mllm_demo.json"
    return packed(*samples)


# https://github.com/InternLM/xtuner, tests/resource/mllm_sft_single_image_example_data.jsonl.
@source("XTuner")
def xtuner(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        path = raw.image(f"resource/{n}.jpg", n)
        image = {"type": "image_url", "image_url": {"url": path, "image_wh": [24, 16]}}
        text = {"type": "text", "text": f"<IMG_CONTEXT>\nColour of {n}?"}
        turns = openai([image, text], f"Brown {n}.", "And its collar?", f"Red {n}.")
        rows.append({"id": n, "messages": turns})
        asked = f"<image>Colour of {n}?"
        samples.append(chat(n, asked, f"Brown {n}.", "And its collar?", f"Red {n}."))
    raw.jsonl("mllm_sft_single_image_example_data.jsonl", rows)
    return packed(*samples)


# https://huggingface.co/datasets/HuggingFaceH4/llava-instruct-mix-vsft, which TRL's example trains
# on: parts with the fields of all kinds of parts, and `images` beside the messages.
@source("TRL messages")
def trl(raw: Raw) -> Fate:
    rows = []
    for n in N:
        text = {"index": None, "text": f"What is {n}?", "type": "text"}
        image = {"index": 0, "text": None, "type": "image"}
        answer = [{"index": None, "text": f"It is {n}.", "type": "text"}]
        turns = openai([text, image], answer)
        rows.append({"messages": turns, "images": [raw.cell(n, "images")]})
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return packed(*(chat(n, f"What is {n}?<image>", f"It is {n}.") for n in N))
