"""Captions and images as COCO has them."""

import json

HEAD = {
    "info": {"description": "COCO 2017 Dataset", "version": "1.0", "year": 2017},
    "licenses": [{"url": "http://l/1", "id": 1, "name": "Attribution"}],
}
# As COCO has it, annotations stand in no order of images.
ANNOTATIONS = [
    {"image_id": 522418, "id": 49, "caption": "A woman cutting a cake."},
    {"image_id": 184613, "id": 474, "caption": "A child with an umbrella."},
    {"image_id": 522418, "id": 38, "caption": "Größe \U0001f600\n"},
    {"image_id": 184613, "id": 1, "caption": ""},
    {"image_id": 522418, "id": 53, "caption": "A third one."},
    {"image_id": 318219, "id": 7, "caption": "A street at night."},
]


def image(number, **fields):
    return {
        "license": 3,
        "file_name": f"{number:012d}.jpg",
        "coco_url": f"http://images.cocodataset.org/val2017/{number:012d}.jpg",
        "height": 427,
        "width": 640,
        "date_captured": "2013-11-14 11:18:45",
        "id": number,
    } | fields


IMAGES = [image(522418), image(318219), image(184613)]


def write_coco(
    root,
    jpeg,
    images=IMAGES,
    annotations=ANNOTATIONS,
    name="annotations/captions_val2017.json",
    order=("info", "images", "licenses", "annotations"),
    folder="val2017",
    **dump,
):
    """Write a dataset as COCO unpacks: annotations/NAME.json and val2017/*.jpg."""
    for number, entry in enumerate(images):
        file_name = entry.get("file_name") if isinstance(entry, dict) else None
        if isinstance(file_name, str) and file_name:
            (root / folder / file_name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / file_name).write_bytes(jpeg(number))
    whole = HEAD | {"images": images, "annotations": annotations}
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({field: whole[field] for field in order}, **dump)
    (root / name).write_text(text, encoding="utf-8")
    return root
