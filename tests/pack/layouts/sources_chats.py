"""Real sources of conversations, as their users have them on disk."""

from ..chats import messages
from ..chats import turns as llava
from .raw import Raw
from .table import Fate, N, chat, packed, refused, source
from .templates import NUMBER, cell, chats, each, filled, images


# https://github.com/haotian-liu/LLaVA, "Visual Instruction Tuning": the folders in
# `playground/data`. Records of ShareGPT have no image.
@source("LLaVA-1.5 mix665k")
def mix665k(raw: Raw) -> Fate:
    folders = ("coco/train2017", "gqa/images", "ocr_vqa/images", "textvqa/train_images")
    folders += ("vg/VG_100K", "vg/VG_100K_2")
    names = [f"{folder}/{n:012d}.jpg" for n, folder in enumerate(folders)]
    images(raw, *names, numbers=range(6))
    texts = ("What is in picture {n}?", "Thing {n}.", "More?", "More of {n}.")
    row = {"id": "{n:012d}", "conversations": llava("<image>\n" + texts[0], *texts[1:])}
    rows = [filled(row, n) | {"image": name} for n, name in enumerate(names)]
    rows.insert(3, {"id": "wgByO4Y_0", "model": "", "conversations": llava("Hi", "Hello.")})
    raw.write("llava_v1_5_mix665k.json", rows)
    samples = chats("<image>" + texts[0], *texts[1:], numbers=range(6))
    return packed(*samples, chat((), "Hi", "Hello."))


# https://huggingface.co/datasets/liuhaotian/LLaVA-Pretrain: images.zip unpacked into `images`, as
# `scripts/v1_5/pretrain.sh` has it, beside the table of the same images.
@source("LLaVA-Pretrain")
def llava_pretrain(raw: Raw) -> Fate:
    name = "{n%3:05d}/{n:09d}.jpg"
    images(raw, f"images/{name}", numbers=range(12))
    about = {"id": "{n:09d}", "image": name}
    asked = ("Render a clear summary of the photo.\n<image>", "<image>\nWrite a terse summary.")
    rows, samples = [], []
    for n in range(12):
        turns = llava(asked[n % 2], "photo number {n}")
        rows += each(about | {"conversations": turns}, numbers=[n])
        samples += chats(asked[n % 2].replace("\n", ""), "photo number {n}", numbers=[n])
    meta = each(about | {"blip_caption": "a {n}", "url": "http://a.b/c"}, numbers=range(12))
    raw.write("blip_laion_cc_sbu_558k.json", rows)
    raw.write("blip_laion_cc_sbu_558k_meta.json", meta)
    raw.text("README.md", "# LLaVA Visual Instruct Pretrain\n")
    return packed(*samples)


# https://github.com/InternLM/InternLM-XComposer, projects/ShareGPT4V/docs/Data.md.
@source("ShareGPT4V", include="sharegpt4v/sharegpt4v_instruct_gpt4-vision_cap100k.json")
def sharegpt4v(raw: Raw) -> Fate:
    folders = ("coco/train2017", "sam/images", "llava/llava_pretrain/images", "wikiart/images")
    names = [f"{folders[n % 4]}/{n:06d}.jpg" for n in N]
    images(raw, *names)
    turns = llava("What do you see in {n}?\n<image>", "In the image there is {n}.")
    rows = [filled({"id": "{n}", "image": names[n], "conversations": turns}, n) for n in N]
    raw.write("sharegpt4v/sharegpt4v_instruct_gpt4-vision_cap100k.json", rows)
    raw.write("sharegpt4v/share-captioner_coco_lcs_sam_1246k_1107.json", rows[:6])
    raw.write("sharegpt4v/sharegpt4v_mix665k_cap23k_coco-ap9k_lcs3k_sam9k_div2k.json", rows[:4])
    return packed(*chats("What do you see in {n}?<image>", "In the image there is {n}."))


# https://huggingface.co/datasets/lmms-lab/LLaVA-OneVision-Data: id, image, conversations and
# data_source; a row may be without an image.
@source("LLaVA-OneVision-Data")
def onevision(raw: Raw) -> Fate:
    row = {"id": "{n}", "image": cell("image"), "data_source": "ai2d(internvl)"}
    row |= {"conversations": llava("<image>\nWhich?", "The {n}.")}
    text = row | {"id": "t", "image": None, "conversations": llava("2 + 2?", "4.")}
    for part, numbers in enumerate((range(5), range(5, 8))):
        rows = each(row, numbers=numbers, raw=raw)
        name = f"ai2d(internvl)/train-0000{part}-of-00002.parquet"
        raw.write(name, [text, *rows] if part else rows)
    return packed(*chats("<image>Which?", "The {n}."), chat((), "2 + 2?", "4."))


# https://huggingface.co/datasets/lmms-lab/LLaVA-Video-178K: video, and `<image>` in the text.
@source("LLaVA-Video-178K")
def llava_video(raw: Raw) -> Fate:
    for n in N:
        raw.other(f"academic_source/youcook2/split_{n}.mp4")
    turns = llava("<image>\nWhat happens?", "Someone cooks {n}.")
    row = {"id": "{n}", "conversations": turns, "data_source": "0_30_s_academic"}
    row |= {"video": "academic_source/youcook2/split_{n}.mp4"}
    raw.write("0_30_s_academic_v0_1_cap_processed.json", each(row))
    return refused("video")


# https://huggingface.co/datasets/nyu-visionx/Cambrian-10M: JSONL beside the unpacked folders of
# images; some records are text alone, with an empty image or none.
@source("Cambrian-10M", include="Cambrian7M_withsystemprompt.jsonl")
def cambrian(raw: Raw) -> Fate:
    names = [f"{('coco', 'geo170k', 'chartqa')[n % 3]}/train/{n}.png" for n in N]
    images(raw, *names)
    row = {"id": "{n}", "source": "cambrian.json"}
    row |= {"conversations": llava("<image>\nHow many in {n}?", "{n}")}
    rows = [filled(row, n) | {"image": names[n]} for n in N]
    rows.insert(2, {"id": "t", "conversations": llava("Sum?", "3"), "source": "orca.json"})
    raw.write("Cambrian7M_withsystemprompt.jsonl", rows)
    raw.write("Cambrian10M.jsonl", rows)
    return packed(*chats("<image>How many in {n}?", "{n}"), chat((), "Sum?", "3"))


# https://huggingface.co/datasets/HuggingFaceM4/the_cauldron: a folder a subset.
@source("The Cauldron")
def cauldron(raw: Raw) -> Fate:
    first = {"user": "Question {n}?", "assistant": "Choice {n}.", "source": "AI2D"}
    second = {"user": "And?", "assistant": "That {n}.", "source": "AI2D"}
    rows = each({"images": [cell("images")], "texts": [first, second]}, raw=raw)
    raw.write("ai2d/train-00000-of-00001-2ce340398c113b79.parquet", rows)
    return packed(*chats("Question {n}?", "Choice {n}.", "And?", "That {n}."))


# https://huggingface.co/datasets/HuggingFaceM4/Docmatix: pages of a document, and questions.
@source("Docmatix")
def docmatix(raw: Raw) -> Fate:
    texts = [{"user": "Page {n}?", "assistant": "Two {n}.", "source": "PDFA key: 1"}]
    row = {"images": [cell("images", "2n"), cell("images", "2n+1")], "texts": texts}
    rows = each(row, raw=raw)
    raw.write("data/train-00000-of-00002.parquet", rows[:4])
    raw.write("data/train-00001-of-00002.parquet", rows[4:])
    return packed(*chats("Page {n}?", "Two {n}.", shown=("2n", "2n+1")))


# https://huggingface.co/datasets/lmms-lab/M4-Instruct-Data: lists of images, the unpacked zips.
@source("M4-Instruct", include="m4_instruct_annotations.json")
def m4_instruct(raw: Raw) -> Fate:
    images(raw, "spot-the-diff/{n}.png", numbers=range(16))
    turns = llava("Images: <image>\n<image>\nWhat differs?", "The {n}.")
    row = {"sample_id": NUMBER, "conversations": turns, "choice_list": None}
    row |= {"image": ["spot-the-diff/{2n}.png", "spot-the-diff/{2n+1}.png"]}
    raw.write("m4_instruct_annotations.json", each(row | {"metadata": {"split": "train"}}))
    video = {"sample_id": 0, "video": "a.mp4", "conversations": llava("<image>\nWhat?", "That.")}
    raw.write("m4_instruct_video.json", [video] * 3)
    texts = ("Images:<image><image>What differs?", "The {n}.")
    return packed(*chats(*texts, shown=("2n", "2n+1")))


# https://github.com/OpenGVLab/InternVL, internvl_chat/shell/data: a meta file names the root and
# the annotation of each part.
@source("InternVL chat")
def internvl(raw: Raw) -> Fate:
    images(raw, "data/chartqa/train/png/{n}.png")
    row = {"id": NUMBER, "image": "train/png/{n}.png", "width": 24, "height": 16}
    row |= {"conversations": llava("<image>\nWhat is {n}?", "Bar {n}.")}
    raw.write("opensource/chartqa_train_18k.jsonl", each(row))
    part = {"root": "data/chartqa/", "annotation": "opensource/chartqa_train_18k.jsonl"}
    meta = {"chartqa_train_18k": part | {"data_augment": False, "repeat_time": 1, "length": 8}}
    raw.write("internvl_finetune.json", meta)
    return packed(*chats("<image>What is {n}?", "Bar {n}."))


def _user(*texts: str) -> list[dict[str, str]]:
    """Return turns as Qwen-VL writes them."""
    return [{"from": turn["role"], "value": turn["content"]} for turn in messages(*texts)]


# https://github.com/QwenLM/Qwen-VL, "Finetuning": the paths are in the text.
@source("Qwen-VL finetune")
def qwen_vl(raw: Raw) -> Fate:
    images(raw, "assets/{n}.jpeg")
    images(raw, "assets/mm_tutorial/{n}.jpeg", numbers=(20, 21))
    texts = ("It is {n}.", "Frame it", "<ref>it</ref><box>({n},2),(3,4)</box>")
    asked = "Picture 1: <img>assets/{n}.jpeg</img>\nWhat is {n}?"
    rows = each({"id": "identity_{n+2}", "conversations": _user(asked, *texts)})
    marks = [f"Picture {n - 19}: <img>assets/mm_tutorial/{n}.jpeg</img>\n" for n in (20, 21)]
    for texts_alone in (("Hello", "I am Qwen-VL."), ("".join(marks) + "Which?", "Two cities.")):
        rows.append({"id": "identity_0", "conversations": _user(*texts_alone)})
    raw.write("qwen_finetune.json", rows)
    both = chat((20, 21), "Picture 1:<image>Picture 2:<image>Which?", "Two cities.")
    samples = chats("Picture 1:<image>What is {n}?", *texts)
    return packed(*samples, chat((), "Hello", "I am Qwen-VL."), both)


# https://github.com/QwenLM/Qwen3-VL, qwen-vl-finetune: a path or a list of paths in `image`.
@source("Qwen2.5-VL finetune")
def qwen25_vl(raw: Raw) -> Fate:
    images(raw, "images/{n}.jpg", numbers=(*N, 20, 21))
    rows = each({"image": "images/{n}.jpg", "conversations": llava("<image>\nObject?", "A {n}.")})
    turns = llava("<image>\n<image>\nBoth?", "Two.")
    rows.append({"image": ["images/20.jpg", "images/21.jpg"], "conversations": turns})
    raw.write("single_and_multi.json", rows)
    both = chat((20, 21), "<image><image>Both?", "Two.")
    return packed(*chats("<image>Object?", "A {n}."), both)


# https://github.com/OpenBMB/MiniCPM-V, finetune/readme.md: turns of {role, content}; of several
# images, an object by their marks.
@source("MiniCPM-V finetune")
def minicpm(raw: Raw) -> Fate:
    images(raw, "images/{n}.jpg", numbers=(*N, 20, 21))
    turns = messages("<image>\nDesserts in {n}?", "There are {n}.")
    rows = each({"id": "{n}", "image": "images/{n}.jpg", "conversations": turns})
    marks = {"<image_00>": "images/20.jpg", "<image_01>": "images/21.jpg"}
    turns = messages("Compare <image_01> with <image_00>.", "They differ.")
    rows.append({"id": "8", "image": marks, "conversations": turns})
    raw.write("vl_finetune_data.json", rows)
    both = chat((21, 20), "Compare<image>with<image>.", "They differ.")
    return packed(*chats("<image>Desserts in {n}?", "There are {n}."), both)


# https://github.com/modelscope/ms-swift, docs, Custom-dataset.md.
@source("ms-swift")
def ms_swift(raw: Raw) -> Fate:
    images(raw, "pictures/{n}.jpg")
    system = "You are a helpful and harmless assistant."
    texts = ("<image>What is {n}?", "An elephant {n}.")
    turns = [{"role": "system", "content": system}, *messages(*texts)]
    raw.write("train.jsonl", each({"messages": turns, "images": ["pictures/{n}.jpg"]}))
    return packed(*chats(*texts, system=system))


# https://github.com/hiyouga/LLaMA-Factory, data/: the file is given, beside other demos and their
# media. The first record shows an image twice.
@source("LLaMA-Factory sharegpt")
def llama_factory(raw: Raw) -> Fate:
    name = "mllm_demo_data/{n}.jpg"
    images(raw, name)
    texts = ("<image>Who is {n}?", "Player {n}.", "What do they do?", "Play {n}.")
    rows = each({"messages": messages(*texts), "images": [name]})
    twice = (*texts[:2], texts[2] + "<image>", texts[3])
    rows[0] = filled({"messages": messages(*twice), "images": [name, name]}, 0)
    raw.write("mllm_demo.json", rows)
    turns = messages("<audio>What is it?", "A bird.")
    sound = {"messages": turns, "audios": ["mllm_demo_data/1.mp3"]}
    raw.write("mllm_audio_demo.json", [sound] * 3)
    raw.write("alpaca_en_demo.json", [{"instruction": "Hi", "input": "", "output": "Hello"}] * 3)
    raw.write("mllm_demo_data/1.mp3", b"ID3")
    raw.write("dataset_info.json", {"mllm_demo": {"file_name": "mllm_demo.json"}})
    raw.given = raw.folder / "mllm_demo.json"
    first = chats(*twice, shown=("n", "n"), numbers=[0])
    return packed(*first, *chats(*texts, numbers=range(1, 8)))


# https://github.com/InternLM/xtuner, tests/resource/mllm_sft_single_image_example_data.jsonl.
@source("XTuner")
def xtuner(raw: Raw) -> Fate:
    images(raw, "resource/{n}.jpg")
    url = {"url": "resource/{n}.jpg", "image_wh": [24, 16]}
    text = {"type": "text", "text": "<IMG_CONTEXT>\nColour of {n}?"}
    texts = ("Brown {n}.", "And its collar?", "Red {n}.")
    turns = messages([{"type": "image_url", "image_url": url}, text], *texts)
    rows = each({"id": NUMBER, "messages": turns})
    raw.write("mllm_sft_single_image_example_data.jsonl", rows)
    return packed(*chats("<image>Colour of {n}?", *texts))


# https://huggingface.co/datasets/HuggingFaceH4/llava-instruct-mix-vsft, which TRL's example trains
# on: parts with the fields of all kinds of parts, and `images` beside the messages.
@source("TRL messages")
def trl(raw: Raw) -> Fate:
    text = {"index": None, "text": "What is {n}?", "type": "text"}
    image = {"index": 0, "text": None, "type": "image"}
    turns = messages([text, image], [{"index": None, "text": "It is {n}.", "type": "text"}])
    rows = each({"messages": turns, "images": [cell("images")]}, raw=raw)
    raw.write("data/train-00000-of-00001.parquet", rows)
    return packed(*chats("What is {n}?<image>", "It is {n}."))
