"""Real sources of captions, as their users have them on disk."""

import json
from typing import Any

from .raw import Raw
from .table import Fate, N, Sample, captioned, layout, packed, refused, source


def _shard_of(
    raw: Raw, shard: str, numbers: range, form: str, **more: Any
) -> tuple[list[Sample], int]:
    """Write a shard of img2dataset; every fifth download has failed.

    Source: https://github.com/rom1504/img2dataset, "Output format".
    """
    rows: list[dict[str, Any]] = []
    members: list[tuple[str, bytes | int]] = []
    samples = []
    for place, n in enumerate(numbers):
        key = f"{shard.rpartition('/')[2]}{place:04d}"
        failed = place % 5 == 4
        row = {
            "url": f"http://a.b/{n}.jpg",
            "caption": f"caption {n}",
            "key": key,
            "status": "failed_to_download" if failed else "success",
            "error_message": "HTTP Error 404: Not Found" if failed else None,
            "width": None if failed else 24,
            "height": None if failed else 16,
            "original_width": None if failed else 24,
            "original_height": None if failed else 16,
            "exif": None if failed else "{}",
            "sha256": None if failed else f"{n:064d}",
            **more,
        }
        if form == "parquet":
            row["jpg"] = None if failed else raw.inside(n, "jpg")
        rows.append(row)
        if failed:
            continue
        meta = {name: value for name, value in row.items() if name != "jpg"}
        members += [(f"{key}.jpg", n), (f"{key}.json", json.dumps(meta).encode())]
        members.append((f"{key}.txt", f"caption {n}".encode()))
        samples.append(captioned(n, f"caption {n}"))
    if form == "webdataset":
        raw.tar(f"{shard}.tar", members)
    elif form == "files":
        for name, content in members:
            if isinstance(content, int):
                raw.image(f"{shard}/{name}", content)
            else:
                raw.bytes(f"{shard}/{name}", content)
    raw.parquet(f"{shard}.parquet", rows)
    raw.json(f"{shard}_stats.json", {"count": len(rows), "successes": len(samples)})
    return samples, len(rows) - len(samples)


def _downloaded(raw: Raw, form: str, **more: Any) -> Fate:
    samples, failed = _shard_of(raw, "00000", range(10), form, **more)
    others, more_failed = _shard_of(raw, "00001", range(10, 20), form, **more)
    return packed(*samples, *others, rejects=failed + more_failed)


@source("CC3M by img2dataset, webdataset")
def cc3m_webdataset(raw: Raw) -> Fate:
    return _downloaded(raw, "webdataset")


@layout("CC3M by img2dataset, files")
def cc3m_files(raw: Raw) -> Fate:
    return _downloaded(raw, "files")


# With `--output_format parquet`: the bytes are in the column `jpg`.
@layout("CC3M by img2dataset, Parquet")
def cc3m_parquet(raw: Raw) -> Fate:
    samples, failed = _shard_of(raw, "00000", range(10), "parquet")
    return packed(*samples, rejects=failed)


# With `--output_format tfrecord`: the images are beside the table.
@layout("CC3M by img2dataset, TFRecord")
def cc3m_tfrecord(raw: Raw) -> Fate:
    _shard_of(raw, "00000", range(10), "tfrecord")
    raw.other("00000.tfrecord", b"\x10" + bytes(200))
    return refused("tfrecord|download")


# With `--save_additional_columns` as img2dataset's dataset_examples/laion5B.md has them.
@source("LAION by img2dataset")
def laion(raw: Raw) -> Fate:
    more = {"similarity": 0.31, "hash": 12345, "punsafe": 0.01, "pwatermark": 0.2}
    return _downloaded(raw, "webdataset", **more)


# https://github.com/mlfoundations/datacomp: `metadata` and `shards`; `shards` is given.
@layout("DataComp")
def datacomp(raw: Raw) -> Fate:
    rows = [
        {"uid": f"{n:032x}", "url": "http://a.b/c.jpg", "text": f"caption {n}"} for n in range(10)
    ]
    raw.parquet("metadata/000000000000.parquet", rows)
    shard = "shards/00000000"
    samples, failed = _shard_of(raw, shard, range(10), "webdataset", uid="f" * 32)
    raw.given = raw.folder / "shards"
    return packed(*samples, rejects=failed)


# https://cocodataset.org/#download, annotations_trainval2017.zip unpacked beside the images.
@source("COCO captions", include="annotations/captions_train2017.json")
def coco(raw: Raw) -> Fate:
    for split, start in (("train2017", 0), ("val2017", 20)):
        images, annotations = [], []
        for n in range(start, start + 8):
            raw.image(f"{split}/{n:012d}.jpg", n)
            image = {"id": n, "file_name": f"{n:012d}.jpg", "width": 24, "height": 16}
            images.append(image | {"license": 1, "coco_url": "http://a.b/c.jpg"})
            for m in range(2):
                text = f"caption {m} of {n}"
                annotations.append({"image_id": n, "id": 10 * n + m, "caption": text})
        whole = {"info": {}, "licenses": [], "images": images}
        raw.json(f"annotations/captions_{split}.json", whole | {"annotations": annotations})
        boxes = [{"image_id": n, "id": n, "category_id": 1, "bbox": [1, 2, 3, 4]} for n in N]
        for kind in ("instances", "person_keypoints"):
            raw.json(f"annotations/{kind}_{split}.json", whole | {"annotations": boxes})
    return packed(*(captioned(n, f"caption {m} of {n}") for n in N for m in range(2)))


# https://textvqa.org/textcaps/dataset/: five captions of an image, each a row.
@source("TextCaps")
def textcaps(raw: Raw) -> Fate:
    rows = []
    for n in N:
        raw.image(f"train_images/{n:016x}.jpg", n)
        texts = [f"caption {m} of {n}" for m in range(2)]
        for m, text in enumerate(texts):
            row = {"image_id": f"{n:016x}", "image_name": f"{n:016x}", "caption_id": 9 * n + m}
            row |= {"image_path": f"train/{n:016x}.jpg", "image_width": 24, "image_height": 16}
            rows.append(row | {"caption_str": text, "reference_strs": texts, "set_name": "train"})
    raw.json("TextCaps_0.1_train.json", {"dataset_name": "textcaps", "data": rows})
    return packed(*(captioned(n, f"caption {m} of {n}") for n in N for m in range(2)))


# https://huggingface.co/datasets/nlphuji/flickr30k, flickr30k-images.zip unpacked. Its own loader
# takes the captions from `raw`, a list in JSON.
@source("Flickr30k of nlphuji", text_column="raw")
def flickr_nlphuji(raw: Raw) -> Fate:
    rows = []
    for n in N:
        raw.image(f"flickr30k-images/{1000 + n}.jpg", n)
        texts = json.dumps([f"Caption {m} of {n}." for m in range(2)])
        row = {"raw": texts, "sentids": f"[{n}, {n + 1}]", "split": "train"}
        rows.append(row | {"filename": f"{1000 + n}.jpg", "img_id": n})
    raw.csv("flickr_annotations_30k.csv", rows)
    return packed(*(captioned(n, f"Caption {m} of {n}.") for n in N for m in range(2)))


# https://www.kaggle.com/datasets/hsankesara/flickr-image-dataset: bars between the columns.
@source("Flickr30k of Kaggle")
def flickr_kaggle(raw: Raw) -> Fate:
    lines = ["image_name| comment_number| comment"]
    for n in N:
        raw.image(f"flickr30k_images/{1000 + n}.jpg", n)
        lines += [f"{1000 + n}.jpg| {m}| Caption {m} , of {n} ." for m in range(2)]
    raw.text("results.csv", "\n".join(lines) + "\n")
    return packed(*(captioned(n, f"Caption {m} , of {n} .") for n in N for m in range(2)))


# https://huggingface.co/datasets/pixparse/cc12m-wds: shards of jpg, txt and json.
@source("CC12M of pixparse")
def cc12m(raw: Raw) -> Fate:
    for shard in range(2):
        members: list[tuple[str, bytes | int]] = []
        for n in range(shard * 6, shard * 6 + 6):
            meta = {"caption": f"caption {n}", "url": "http://a.b/c.jpg", "key": f"{n:09d}"}
            meta |= {"status": "success", "width": 24, "height": 16, "exif": "{}"}
            members += [(f"{n:09d}.jpg", n), (f"{n:09d}.txt", f"caption {n}".encode())]
            members.append((f"{n:09d}.json", json.dumps(meta).encode()))
        raw.tar(f"cc12m-train-{shard:04d}.tar", members)
    raw.json("_info.json", {"splits": {"train": {"num_samples": 12}}})
    return packed(*(captioned(n, f"caption {n}") for n in range(12)))


# https://huggingface.co/docs/datasets/image_dataset, "ImageFolder".
@source("imagefolder with metadata.csv")
def imagefolder_csv(raw: Raw) -> Fate:
    rows = [{"file_name": f"{n:04d}.png", "text": f"A picture, number {n}."} for n in N]
    for n in N:
        raw.image(f"train/{n:04d}.png", n)
    raw.csv("train/metadata.csv", rows)
    return packed(*(captioned(n, f"A picture, number {n}.") for n in N))


# https://github.com/kohya-ss/sd-scripts, docs/train_README-ja.md: repeats and a class in the name
# of the folder, latents that a run has cached.
@source("kohya_ss")
def kohya(raw: Raw) -> Fate:
    for n in N:
        folder = "10_sls 1girl" if n % 2 else "5_cat"
        raw.image(f"{folder}/{n:03d}.png", n)
        raw.text(f"{folder}/{n:03d}.txt", f"1girl, number {n}, smile")
        raw.other(f"{folder}/{n:03d}.npz")
    return packed(*(captioned(n, f"1girl, number {n}, smile") for n in N))


# https://huggingface.co/datasets/lambdalabs/pokemon-blip-captions: image and text.
@source("Pokemon BLIP captions")
def pokemon(raw: Raw) -> Fate:
    rows = [{"image": raw.cell(n, "image", kind="jpg"), "text": f"a drawing of {n}"} for n in N]
    raw.parquet("data/train-00000-of-00001-566cc9b19d7203f8.parquet", rows)
    return packed(*(captioned(n, f"a drawing of {n}") for n in N))


# https://huggingface.co/datasets/HuggingFaceM4/OBELICS, with the images downloaded and named in the
# places of their addresses.
@source("OBELICS")
def obelics(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        path = raw.image(f"images/{n}.jpg", n)
        texts = [None, f"Words of {n}.", f"More of {n}."]
        places = [path, None, None]
        if n % 2:
            texts, places = [texts[1], None, texts[2]], [None, path, None]
        meta = json.dumps([{"src": "http://a.b/c.jpg"} if place else None for place in places])
        row = {"images": places, "metadata": meta, "general_metadata": "{}", "texts": texts}
        rows.append(row)
        words = [text if text else "<image>" for text in texts]
        said = "\n\n".join(words).replace("\n\n<image>\n\n", "<image>")
        if n % 2:
            samples.append(Sample((n,), (("user", ""), ("assistant", said))))
        else:
            samples.append(captioned(n, said.removeprefix("<image>\n\n")))
    raw.parquet("data/train-00000-of-00001.parquet", rows)
    return packed(*samples)


# https://github.com/allenai/mmc4: documents whose images are downloaded under `image_name`.
@source("MMC4")
def mmc4(raw: Raw) -> Fate:
    rows, samples = [], []
    for n in N:
        raw.image(f"images/{n:012x}.jpg", n)
        info = {"image_name": f"{n:012x}.jpg", "raw_url": "http://a.b/c.jpg"}
        info |= {"matched_text_index": 1, "matched_sim": 0.27, "face_detections": None}
        row: dict[str, Any] = {
            "text_list": [f"First of {n}.", f"Second of {n}."],
            "url": "http://a.b",
        }
        row |= {"image_info": [info], "similarity_matrix": [[0.2, 0.3]]}
        rows.append(row | {"could_have_url_duplicate": 0})
        text = f"First of {n}.<image>Second of {n}."
        samples.append(Sample((n,), (("user", ""), ("assistant", text))))
    raw.jsonl("docs_shard_0_v2.jsonl", rows)
    return packed(*samples)
