"""Real sources of captions, as their users have them on disk."""

import json
from typing import Any

from .raw import Raw
from .table import Fate, N, Sample, captioned, layout, packed, refused, source
from .templates import NUMBER, Tagged, captions, cell, each, filled, images


def _shard_of(
    raw: Raw, shard: str, numbers: range, form: str, **more: Any
) -> tuple[list[Sample], int]:
    """Write a shard of img2dataset; every fifth download has failed.

    Source: https://github.com/rom1504/img2dataset, "Output format".
    """
    rows: list[dict[str, Any]] = []
    parts: dict[str, dict[str, Any]] = {}
    samples = []
    for place, n in enumerate(numbers):
        key = f"{shard.rpartition('/')[2]}{place:04d}"
        row = {"url": f"http://a.b/{n}.jpg", "caption": f"caption {n}", "key": key, **more}
        rows.append(row)
        if place % 5 == 4:
            row |= {"status": "failed_to_download", "error_message": "HTTP Error 404: Not Found"}
            continue
        row |= {"status": "success", "error_message": None, "width": 24, "height": 16}
        row |= {"original_width": 24, "original_height": 16, "exif": "{}", "sha256": f"{n:064d}"}
        parts[key] = {"jpg": n, "json": dict(row), "txt": f"caption {n}"}
        if form == "parquet":
            row["jpg"] = raw.inside(n, "jpg")
        samples.append(captioned(n, f"caption {n}"))
    if form == "webdataset":
        raw.shard(f"{shard}.tar", parts)
    elif form == "files":
        raw.files({f"{shard}/{key}": part for key, part in parts.items()})
    raw.write(f"{shard}.parquet", rows)
    raw.write(f"{shard}_stats.json", {"count": len(rows), "successes": len(samples)})
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
    return _downloaded(raw, "parquet")


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
    rows = each({"uid": "{n:032x}", "url": "http://a.b/c.jpg", "text": "caption {n}"})
    raw.write("metadata/000000000000.parquet", rows)
    shard = "shards/00000000"
    samples, failed = _shard_of(raw, shard, range(10), "webdataset", uid="f" * 32)
    raw.given = raw.folder / "shards"
    return packed(*samples, rejects=failed)


# https://cocodataset.org/#download, annotations_trainval2017.zip unpacked beside the images.
@source("COCO captions", include="annotations/captions_train2017.json")
def coco(raw: Raw) -> Fate:
    for split, numbers in (("train2017", N), ("val2017", range(20, 28))):
        images(raw, f"{split}/{{n:012d}}.jpg", numbers=numbers)
        image = {"id": NUMBER, "file_name": "{n:012d}.jpg", "width": 24, "height": 16}
        image |= {"license": 1, "coco_url": "http://a.b/c.jpg"}
        whole = {"info": {}, "licenses": [], "images": each(image, numbers=numbers)}
        texts = [
            {"image_id": NUMBER, "id": Tagged("n", f"10n+{m}"), "caption": f"caption {m} of {{n}}"}
            for m in range(2)
        ]
        annotations = each(*texts, numbers=numbers)
        raw.write(f"annotations/captions_{split}.json", whole | {"annotations": annotations})
        box = {"image_id": NUMBER, "id": NUMBER, "category_id": 1, "bbox": [1, 2, 3, 4]}
        boxes = whole | {"annotations": each(box)}
        raw.write(f"annotations/instances_{split}.json", boxes)
        raw.write(f"annotations/person_keypoints_{split}.json", boxes)
    return packed(*captions("caption 0 of {n}", "caption 1 of {n}"))


# https://textvqa.org/textcaps/dataset/: five captions of an image, each a row.
@source("TextCaps")
def textcaps(raw: Raw) -> Fate:
    images(raw, "train_images/{n:016x}.jpg")
    texts = ["caption 0 of {n}", "caption 1 of {n}"]
    row = {"image_id": "{n:016x}", "image_name": "{n:016x}", "image_width": 24, "image_height": 16}
    row |= {"image_path": "train/{n:016x}.jpg", "reference_strs": texts, "set_name": "train"}
    rows = each(*(row | {"caption_id": m, "caption_str": text} for m, text in enumerate(texts)))
    raw.write("TextCaps_0.1_train.json", {"dataset_name": "textcaps", "data": rows})
    return packed(*captions(*texts))


# https://huggingface.co/datasets/nlphuji/flickr30k, flickr30k-images.zip unpacked. Its own loader
# takes the captions from `raw`, a list in JSON.
@source("Flickr30k of nlphuji", text_column="raw")
def flickr_nlphuji(raw: Raw) -> Fate:
    images(raw, "flickr30k-images/{n+1000}.jpg")
    texts = ["Caption 0 of {n}.", "Caption 1 of {n}."]
    row = {"raw": json.dumps(texts), "sentids": "[{n}, {n+1}]", "split": "train"}
    rows = each(row | {"filename": "{n+1000}.jpg", "img_id": NUMBER})
    raw.write("flickr_annotations_30k.csv", rows)
    return packed(*captions(*texts))


# https://www.kaggle.com/datasets/hsankesara/flickr-image-dataset: bars between the columns.
@source("Flickr30k of Kaggle")
def flickr_kaggle(raw: Raw) -> Fate:
    images(raw, "flickr30k_images/{n+1000}.jpg")
    texts = ["Caption 0 , of {n} .", "Caption 1 , of {n} ."]
    lines = each(*(f"{{n+1000}}.jpg| {m}| {text}" for m, text in enumerate(texts)))
    raw.text("results.csv", "\n".join(["image_name| comment_number| comment", *lines]) + "\n")
    return packed(*captions(*texts))


# https://huggingface.co/datasets/pixparse/cc12m-wds: shards of jpg, txt and json.
@source("CC12M of pixparse")
def cc12m(raw: Raw) -> Fate:
    meta = {"caption": "caption {n}", "url": "http://a.b/c.jpg", "key": "{n:09d}"}
    meta |= {"status": "success", "width": 24, "height": 16, "exif": "{}"}
    for shard in range(2):
        parts = {
            f"{n:09d}": {"jpg": n, "txt": f"caption {n}", "json": filled(meta, n)}
            for n in range(shard * 4, shard * 4 + 4)
        }
        raw.shard(f"cc12m-train-{shard:04d}.tar", parts)
    raw.write("_info.json", {"splits": {"train": {"num_samples": 8}}})
    return packed(*captions("caption {n}"))


# https://huggingface.co/docs/datasets/image_dataset, "ImageFolder".
@source("imagefolder with metadata.csv")
def imagefolder_csv(raw: Raw) -> Fate:
    images(raw, "train/{n:04d}.png")
    rows = each({"file_name": "{n:04d}.png", "text": "A picture, number {n}."})
    raw.write("train/metadata.csv", rows)
    return packed(*captions("A picture, number {n}."))


# https://github.com/kohya-ss/sd-scripts, docs/train_README-ja.md: repeats and a class in the name
# of the folder, latents that a run has cached.
@source("kohya_ss")
def kohya(raw: Raw) -> Fate:
    for n in N:
        folder = "10_sls 1girl" if n % 2 else "5_cat"
        raw.image(f"{folder}/{n:03d}.png", n)
        raw.text(f"{folder}/{n:03d}.txt", f"1girl, number {n}, smile")
        raw.other(f"{folder}/{n:03d}.npz")
    return packed(*captions("1girl, number {n}, smile"))


# https://huggingface.co/datasets/lambdalabs/pokemon-blip-captions: image and text.
@source("Pokemon BLIP captions")
def pokemon(raw: Raw) -> Fate:
    rows = each({"image": cell("image"), "text": "a drawing of {n}"}, raw=raw)
    raw.write("data/train-00000-of-00001-566cc9b19d7203f8.parquet", rows)
    return packed(*captions("a drawing of {n}"))


# https://huggingface.co/datasets/HuggingFaceM4/OBELICS, with the images downloaded and named in the
# places of their addresses.
@source("OBELICS")
def obelics(raw: Raw) -> Fate:
    images(raw, "images/{n}.jpg", numbers=range(16))
    src = '{"src": "http://a.b/c.jpg"}'
    first = {"images": ["images/{2n}.jpg", None, None], "metadata": f"[{src}, null, null]"}
    first |= {"general_metadata": "{}", "texts": [None, "Words of {2n}.", "More of {2n}."]}
    inner = {"images": [None, "images/{2n+1}.jpg", None], "metadata": f"[null, {src}, null]"}
    inner |= {"general_metadata": "{}", "texts": ["Words of {2n+1}.", None, "More of {2n+1}."]}
    raw.write("data/train-00000-of-00001.parquet", each(first, inner))
    samples = []
    for n in range(0, 16, 2):
        text = f"Words of {n + 1}.<image>More of {n + 1}."
        samples.append(captioned(n, f"Words of {n}.\n\nMore of {n}."))
        samples.append(captioned(n + 1, text))
    return packed(*samples)


# https://github.com/allenai/mmc4: documents whose images are downloaded under `image_name`.
@source("MMC4")
def mmc4(raw: Raw) -> Fate:
    images(raw, "images/{n:012x}.jpg")
    info = {"image_name": "{n:012x}.jpg", "raw_url": "http://a.b/c.jpg", "face_detections": None}
    info |= {"matched_text_index": 1, "matched_sim": 0.27}
    row = {"text_list": ["First of {n}.", "Second of {n}."], "url": "http://a.b"}
    row |= {"image_info": [info], "similarity_matrix": [[0.2, 0.3]], "could_have_url_duplicate": 0}
    raw.write("docs_shard_0_v2.jsonl", each(row))
    return packed(*captions("First of {n}.<image>Second of {n}."))
