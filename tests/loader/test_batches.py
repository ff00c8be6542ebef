"""What stands in a batch."""

import io
import re
import threading

import numpy as np
import pytest
import torch
from PIL import Image

import datapipe
from datapipe import ImageSpec
from datapipe.testing import assert_same_batches, valid_keys

from .conftest import SAMPLES


def pictures(found):
    """The images among the members of a sample, in order."""
    return [
        Image.open(io.BytesIO(data)).convert("RGB") for ext, data in found.items() if ext != "json"
    ]


def test_images_of_all_samples_stand_one_behind_the_other(make, packed, members):
    found = {key: pictures(sample) for key, sample in members(packed).items()}
    for batch in make(batch_size=8, drop_last=True, image=ImageSpec(size=24)):
        expected = [
            np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR))
            for key in batch["key"]
            for image in found[key]
        ]
        assert batch["images_per_sample"].tolist() == [len(found[key]) for key in batch["key"]]
        assert batch["pixel_values"].shape == (len(expected), 3, 24, 24)
        actual = batch["pixel_values"].permute(0, 2, 3, 1).numpy().astype(int)
        assert np.abs(actual - np.stack(expected)).max() <= 1


def test_normalised_values_are_those_of_the_uint8_image(make):
    plain = next(iter(make(image=ImageSpec(size=20))))
    normal = next(iter(make(image=ImageSpec(size=20, normalize="imagenet"))))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ImageSpec(normalize="imagenet").mean_std)
    expected = (plain["pixel_values"] / 255 - mean) / std
    torch.testing.assert_close(normal["pixel_values"], expected, atol=1e-5, rtol=1e-5)


def test_a_conversation_is_read_as_text_and_on_request_as_it_is(make):
    (batch,) = make(shuffle=False, batch_size=SAMPLES, meta=("id", "conversations", "absent"))
    assert batch["text"][1] == "user: <image>What is number 1?\nassistant: It is 1."
    assert batch["text"][9] == "user: What is number 9?\nassistant: It is 9."
    assert batch["id"][:2] == ["id-0", "id-1"]
    assert batch["conversations"][1][1] == {"from": "gpt", "value": "It is 1."}
    assert batch["absent"] == [None] * SAMPLES


def test_a_batch_without_images_has_rows_for_none(make):
    batch = next(iter(make(where="images == 0")))
    assert batch["images_per_sample"].tolist() == [0] * 4
    assert batch["pixel_values"].shape == (0, 3, 32, 32)


def test_an_epoch_has_every_sample_once_and_len_is_exact(make):
    loader = make(batch_size=5)
    batches = list(loader)
    assert len(batches) == len(loader) == 8
    first, second = valid_keys(batches), valid_keys(loader)
    assert first != second
    assert sorted(first) == sorted(second) == valid_keys(make(shuffle=False))
    assert len(set(first)) == len(first) == SAMPLES


@pytest.mark.parametrize("options", [{"num_workers": 0}, {}, {"device": "cpu"}], ids=str)
def test_batches_made_in_inference_mode_are_ordinary_tensors(make, options):
    expected = list(make(image=ImageSpec(size=16, normalize="clip")))
    loader = make(image=ImageSpec(size=16, normalize="clip"), **options)
    iterator = iter(loader)
    with torch.inference_mode():
        batches = [next(iterator)]
    batches += iterator
    assert_same_batches(batches, expected)
    for batch in batches:
        assert not any(torch.is_tensor(v) and v.is_inference() for v in batch.values())


DEFAULTS = """
    import torch

    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")

    def same(sample, generator):
        return sample
"""


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {}, {"workers": "processes"}], ids=str)
def test_defaults_of_torch_do_not_change_the_numbers(make, user_module, device, workers):
    """They are set where the transform is imported, in worker processes too."""
    options = {
        "image": ImageSpec(size=16, normalize="clip", resize="pad"),
        "device": datapipe.DeviceSpec(device, channels_last=device is not None),
    }
    expected = list(make(**options))
    try:
        loader = make(transform=user_module(DEFAULTS).same, **options, **workers)
        changed = list(loader)
        plain = make(**options, **workers)
        unchanged = list(plain)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    loader.close()
    plain.close()
    assert_same_batches(changed, expected)
    assert_same_batches(unchanged, expected)


@pytest.mark.parametrize("begin", ["its first epoch", "epoch 1", "four times", "a saved state"])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 64}], ids=str)
def test_a_field_that_no_sample_has_is_named_once_by_a_loader(make, caplog, options, begin):
    options = {"meta": ("keys", "id", "source"), "epochs": 2, **options}
    for _ in range(2):
        loader = make(**options)
        if begin == "epoch 1":
            loader.set_epoch(1)
        if begin == "a saved state":
            other = make(**options | {"meta": ("id",)})
            next(iter(other))
            loader.load_state_dict(other.state_dict())
        for _ in range(4 * (begin == "four times")):
            next(iter(loader))
        list(loader)
        (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert re.match(r"meta names 'keys'.*'id'.*'key'", warning)
        caplog.clear()


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"pack": 300}], ids=str)
def test_a_batch_may_be_written_to(make, text, options):
    names = ("sample", "images_per_sample", "valid")
    options = options | {"text": text(), "meta": names, "num_workers": 0}
    expected, loader = list(make(**options)), make(**options)
    plan = [str(loader.plan.step(step)) for step in range(len(loader))]
    for batch in loader:
        for name in names:
            batch[name].zero_()  # warns where the memory is read-only
    assert [str(loader.plan.step(step, epoch=0)) for step in range(len(expected))] == plan
    loader.set_epoch(0)
    assert_same_batches(loader, expected)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_works_alone_inside_a_batch_only(make, num_workers):
    seen, found = [], []

    def transform(sample, generator):
        seen.append(torch.get_num_threads())
        if len(seen) > 30:
            raise RuntimeError("no more")
        return sample

    batches = iter(make(num_workers=num_workers, transform=transform))
    between = [(next(batches), torch.get_num_threads())[1] for _ in range(6)]
    with pytest.raises(datapipe.TransformError):
        list(batches)
    new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert set(seen) == {1}
    assert {*between, *found, torch.get_num_threads()} == {3}
