"""The one graph that DALI runs, for CPU and GPU, and the window of each image in it.

The graph decodes, resizes a part of the image, puts the result into its window, normalises, and
puts channels first. The window follows from an image's size alone, and is fed in beside the bytes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.forms.fixed import resized_part
from datapipe.decode.spec import ImageSpec
from datapipe.decode.spec_checks import ONE_SIZE
from datapipe.errors import PlanError
from datapipe.extras import install_command
from datapipe.geometry.crop import Box, Draw, Placement

IMAGES, WINDOWS, MIRRORS = "images", "windows", "mirrors"
"""Names of the graph's inputs."""

Window = tuple[float, float, float, float, float, float, float, float]
"""See `window`."""

FAILURES = (RuntimeError, ValueError, IndexError, MemoryError)
"""Errors of DALI: exceptions of C++ become Python's own."""


def installed() -> bool:
    """Return whether DALI can be imported, without importing it."""
    try:
        return find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # there is no package `nvidia` either
        return False


def check_supported(spec: ImageSpec) -> None:
    """Raise `PlanError` for a spec that the graph does not support."""
    if not spec.one_size:
        raise PlanError(
            f"resize={spec.resize!r} is not in DALI's graph, which makes images of one size "
            f"({', '.join(map(repr, ONE_SIZE))}); use decoder='cpu'"
        )
    if spec.interpolation == "lanczos":
        raise PlanError("interpolation='lanczos' is not in DALI's graph; use decoder='cpu'")


def window(spec: ImageSpec, width: int, height: int, draw: Draw | None = None) -> Window:
    """Return which part of an upright image is resized, its new size and its position.

    They are (height, width) of the result; (top, left, bottom, right) of the part, in pixels of the
    image; and the result's position in the output, down and across, from 0 (start) to 1 (end).
    """
    box, down, across = resized_part(spec, width, height, draw)
    if spec.resize == "pad":
        beside_y, beside_x = spec.height - down, spec.width - across
        return (
            *(float(down), float(across)),
            *(0.0, 0.0, float(height), float(width)),
            (beside_y // 2) / beside_y if beside_y else 0.0,
            (beside_x // 2) / beside_x if beside_x else 0.0,
        )
    box = box or Box(0, 0, width, height)
    top, left = (down - spec.height) // 2, (across - spec.width) // 2
    scale_y, scale_x = box.height / down, box.width / across
    return (
        *(float(spec.height), float(spec.width)),
        *(box.top + top * scale_y, box.left + left * scale_x),
        box.top + (top + spec.height) * scale_y,
        box.left + (left + spec.width) * scale_x,
        *(0.0, 0.0),
    )


def placement(spec: ImageSpec, width: int, height: int, draw: Draw | None = None) -> Placement:
    """Return the placement of an upright image in the output."""
    down, across, top, left, bottom, right, beside_y, beside_x = window(spec, width, height, draw)
    scale_x, scale_y = across / (right - left), down / (bottom - top)
    placed = Placement(scale_x, scale_y, -left * scale_x, -top * scale_y)
    placed = placed.shifted(beside_x * (spec.width - across), beside_y * (spec.height - down))
    mirrored = draw is not None and draw.mirrors(spec.flip)
    return placed.mirrored(spec.width) if mirrored else placed


def build(
    spec: ImageSpec, device: torch.device, batch_size: int, threads: int, decoding: DaliOptions
) -> Any:
    """Build a pipeline to `[n, 3, height, width]`, uint8 or float32; `PlanError` without DALI."""
    # Imported without types: DALI may not be installed, and its types say little.
    try:
        dali = import_module("nvidia.dali")
    except ImportError as error:
        raise PlanError(
            f"decoder='dali' needs DALI, which cannot be imported ({error}); install it with "
            f"{install_command('dali')}, or use decoder='cpu'"
        ) from error
    pipeline = dali.Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=device.index,
        # One batch goes in and the same comes out; batches overlap by several pipelines.
        prefetch_queue_depth=1,
        # Outputs have memory of their own, which lives as long as their tensors, and the pipeline
        # continues after a bad image.
        exec_dynamic=True,
    )
    try:
        with pipeline:
            pipeline.set_outputs(_graph(spec, decoder_options(device, decoding)))
        pipeline.build()
    except FAILURES as error:
        raise PlanError(
            f"DALI cannot start on {device}: {first_line(error)}; use decoder='cpu'"
        ) from error
    return pipeline


def first_line(error: BaseException) -> str:
    """Return what DALI says of the cause, without the Python source of its operator."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("File ", "which was used"))]
    causes = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    return causes[0] if causes else type(error).__name__


def _graph(spec: ImageSpec, decoding: dict[str, Any]) -> Any:
    fn: Any = import_module("nvidia.dali.fn")
    types: Any = import_module("nvidia.dali.types")
    # Not copied: the decoder holds the bytes until the batch is through.
    images = fn.external_source(name=IMAGES, dtype=types.UINT8, ndim=1, no_copy=True)
    windows = fn.external_source(name=WINDOWS, dtype=types.FLOAT, ndim=1)
    cubic = spec.interpolation == "bicubic"
    fitted = fn.resize(
        fn.decoders.image(images, **decoding),
        size=windows[0:2],
        roi_start=windows[2:4],
        roi_end=windows[4:6],
        roi_relative=False,
        # Sizes are whole, and the part must not be adjusted to them.
        subpixel_scale=False,
        interp_type=types.INTERP_CUBIC if cubic else types.INTERP_LINEAR,
        antialias=True,
    )
    is_uint8 = spec.out_dtype == torch.uint8
    # For pixels from 0 to 255; uint8 stays as it is.
    scale = 1.0 if is_uint8 else 255.0
    mean, std = spec.mean_std or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    others: dict[str, Any] = {}
    if spec.flip > 0:
        others["mirror"] = fn.external_source(name=MIRRORS, dtype=types.INT32, ndim=0)
    if spec.resize == "pad":
        others["out_of_bounds_policy"] = "pad"
        # Not normalised by DALI.
        others["fill_values"] = [
            (value / scale - m) / s for value, m, s in zip(spec.fill_color, mean, std, strict=True)
        ]
    return fn.crop_mirror_normalize(
        fitted,
        dtype=types.UINT8 if is_uint8 else types.FLOAT,
        output_layout="CHW",
        crop_h=float(spec.height),
        crop_w=float(spec.width),
        crop_pos_y=windows[6],
        crop_pos_x=windows[7],
        mean=[m * scale for m in mean],
        std=[s * scale for s in std],
        # With padding DALI takes a slower kernel on a GPU.
        **others,
    )


def decoder_options(device: torch.device, decoding: DaliOptions) -> dict[str, Any]:
    """Return the arguments of `fn.decoders.image`."""
    if device.type == "cpu":
        return {"device": "cpu"}
    return {
        "device": "mixed",
        "hw_decoder_load": decoding.hw_decoder_load,
        "hybrid_huffman_threshold": decoding.hybrid_huffman_threshold,
        "preallocate_width_hint": decoding.preallocate_width,
        "preallocate_height_hint": decoding.preallocate_height,
        # Chroma as libjpeg-turbo scales it up, so that all devices show the same.
        "jpeg_fancy_upsampling": True,
        # Every rank of a machine would bind its threads to the same first cores.
        "affine": False,
    }
