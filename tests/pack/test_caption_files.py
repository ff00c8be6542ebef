"""Captions in one JSON file: what is none, and how many samples are expected."""

import json

import pytest

from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers import all_readers

from .cases import values
from .reading import estimate, read, recognises


@pytest.mark.parametrize("captions", values("objects that are no captions"), ids=str)
def test_other_objects_are_no_captions(raw, put, captions):
    images = {"images/000123.jpg": 0, "images/000124.jpg": 1, "images/sub/a.png": 2}
    put(raw, images | {"captions.json": json.dumps(captions)})
    assert not recognises(all_readers()["captiondict"], raw, ReadOptions())


def test_a_value_that_is_no_caption_is_rejected(raw, put):
    captions = {f"{number}.jpg": "A dog" for number in range(20)} | {"20.jpg": 5}
    put(raw, {"0.jpg": 0, "captions.json": captions})
    *samples, line = read(all_readers()["captiondict"], raw)
    assert len(samples) == 20
    assert line.reason.startswith("value is a int, not a caption")


@pytest.mark.parametrize(("mode", "samples"), [("all", 4), ("join", 2)])
def test_sentences_of_karpathys_splits_are_estimated(raw, put, mode, samples):
    said = [{"raw": "A dog runs ."}, {"raw": "A black dog ."}]
    images = [{"filename": f"{n}.jpg", "split": "train", "sentences": said} for n in range(2)]
    put(raw, {"0.jpg": 0, "1.jpg": 1, "dataset.json": {"images": images, "dataset": "flickr30k"}})
    assert estimate(all_readers()["karpathy"], raw, ReadOptions(captions=mode)) == samples
