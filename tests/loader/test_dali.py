"""Batches decoded by DALI are those of the CPU kernels, within what decoders differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import datapipe
from datapipe import ImageSpec, Loader, PlanError
from datapipe.testing import assert_resumes_exactly, assert_same_batches

pytest.importorskip("nvidia.dali")

Make = Callable[..., Loader]
MakeText = Callable[..., datapipe.TextSpec]


@pytest.mark.parametrize(
    "spec",
    [ImageSpec(size=64), ImageSpec(size=(48, 80), resize="pad", normalize="clip")],
    ids=["stretch", "pad"],
)
@pytest.mark.parametrize("options", [{"batch_size": 6}, {"pack": 200}], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_cpu_kernels(
    make: Make, text: MakeText, spec: ImageSpec, options: dict[str, Any], num_workers: int
) -> None:
    options = options | {"image": spec, "text": text(), "num_workers": num_workers}
    scale = 1.0 if spec.normalize is None else 1 / 255 / 0.26
    batches = zip(make(decoder="dali", **options), make(decoder="cpu", **options), strict=True)
    for dali, kernels in batches:
        pixels, expected = dali.pop("pixel_values", None), kernels.pop("pixel_values", None)
        assert_same_batches([dali], [kernels])
        assert (pixels is None) == (expected is None)
        if pixels is not None:
            assert pixels.shape == expected.shape
            assert pixels.dtype == expected.dtype
            difference = (pixels.float() - expected.float()).abs()
            assert difference.mean() < 1.5 * scale


def test_batches_that_are_kept_do_not_change(make: Make) -> None:
    spec = ImageSpec(size=32, normalize="imagenet")
    kept = list(make(image=spec, decoder="dali", epochs=3))
    again = make(image=spec, decoder="dali", epochs=3)
    assert_same_batches(kept, [{**b, "pixel_values": b["pixel_values"].clone()} for b in again])


def test_a_damaged_image_is_isolated(damaged: Path) -> None:
    def batches(**options: Any) -> list[Any]:
        return list(
            datapipe.make_loader(
                damaged, batch_size=5, image=ImageSpec(size=32), on_error="skip", **options
            )
        )

    for verify in (True, False):
        for dali, kernels in zip(
            batches(decoder="dali", verify=verify), batches(verify=verify), strict=True
        ):
            assert dali["valid"].tolist() == kernels["valid"].tolist()
            difference = dali["pixel_values"].float() - kernels["pixel_values"].float()
            assert difference.abs().mean() < 1.5
    with pytest.raises(datapipe.DecodeError) as caught:
        list(datapipe.make_loader(damaged, batch_size=5, decoder="dali", verify=False))
    assert caught.value.key in {"000000006", "000000020"}


def test_excluded_samples_leave_zeros(make: Make, text: MakeText) -> None:
    options = {"text": text(), "pack": 200, "exclude": [3, 9, 17], "image": ImageSpec(size=16)}
    for dali, kernels in zip(
        make(decoder="dali", **options), make(decoder="cpu", **options), strict=True
    ):
        assert ("pixel_values" in dali) == ("pixel_values" in kernels)
        if "pixel_values" in dali:
            blank = (kernels["pixel_values"] == 0).flatten(1).all(1)
            assert ((dali["pixel_values"] == 0).flatten(1).all(1) == blank).all()


def test_constant_shapes_are_filled_up(make: Make, text: MakeText) -> None:
    options = {"pack": 200, "max_images": 12, "static_shapes": True, "image": ImageSpec(size=16)}
    for batch in make(decoder="dali", text=text(), **options):
        assert batch["pixel_values"].shape == (12, 3, 16, 16)
        used = int((batch["input_ids"] == 3).sum()) // 6
        assert (batch["pixel_values"][used:] == 0).all()
        assert (batch["pixel_values"][:used] > 0).flatten(1).any(1).all()


def test_dali_resumes_exactly(packed: Path) -> None:
    spec = ImageSpec(size=24, resize="crop", random_crop=(0.3, 1.0), flip=0.5)

    def make(**options: Any) -> Loader:
        return datapipe.make_loader(packed, batch_size=4, image=spec, decoder="dali", **options)

    assert_resumes_exactly(make, stops=(0.0, 0.5), world_sizes=(1, 2))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"decoder": "nvjpeg"}, "decoder 'nvjpeg'"),
        ({"image": None}, "image=None leaves them out"),
        ({"image": ImageSpec(resize="native")}, "resize='native'"),
        ({"image": ImageSpec(scaled_decode=True)}, "scaled_decode"),
        ({"transform": lambda sample, _: sample}, "transform="),
        ({"meta": "image_geometry"}, "image_geometry"),
    ],
)
def test_what_dali_cannot_do_is_refused(make: Make, options: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError, match=cause):
        make(**{"decoder": "dali"} | options)


def test_without_dali_its_name_says_how_to_install_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datapipe.decode.dali_graph.installed", lambda: False)
    with pytest.raises(PlanError, match=r"pip install 'datapipe\[dali\]'"):
        make(decoder="dali")
    assert torch.equal(
        next(iter(make(decoder="auto")))["pixel_values"],
        next(iter(make(decoder="cpu")))["pixel_values"],
    )
