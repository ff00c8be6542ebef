"""Building blocks of the golden configurations: ways to load, specs, and names of keys."""

from typing import Any

import numpy as np
import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, RemoteSpec

from .cases import HERE, Way
from .data import conversation_tokens

LOTS = 1 << 28


def text(**changes: Any) -> datapipe.TextSpec:
    return conversation_tokens(**changes)


def image(**options: Any) -> ImageSpec:
    return ImageSpec(**{"size": 16} | options)


def free(resize: Any, **options: Any) -> ImageSpec:
    """Images of their own size."""
    sizes = {"patch": 8, "merge": 2, "min_pixels": 256, "max_pixels": 2048}
    return ImageSpec(resize=resize, **sizes | options)


PROCESSES = Way(name="processes", options={"workers": "processes", "num_workers": 1})
MEMORY = Way(name="memory cache", options={"cache": CacheSpec(memory=LOTS)})
DISK = Way(name="disk cache", options={"cache": CacheSpec(disk=HERE, disk_size=LOTS)})
BOTH = Way(
    name="both caches", options={"cache": CacheSpec(memory=20_000, disk=HERE, disk_size=LOTS)}
)
ENCODED = Way(name="encoded cache", options={"cache": CacheSpec(memory=LOTS, keep="encoded")})
SMALL = Way(name="small cache", options={"cache": CacheSpec(memory=12_000, policy="next-use")})
DEVICE = Way(name="device", options={"device": "cpu"})
ON_DEVICE = Way(name="device cache", options={"device": "cpu", "cache": CacheSpec(device=LOTS)})
ARRAYS = Way(name="arrays", data="arrays")
SERVED = Way(name="served", data="served", options={"remote": RemoteSpec(read_ahead="20KB")})
PLANNED = Way(name="plan cache", options={"cache": CacheSpec(plan=HERE)})

NATIVE = free("native", temporal=2)
TILES = ImageSpec(resize="tiles", size=16, tiles=4, patch=8, merge=2)
ANYRES = ImageSpec(
    resize="tiles", size=16, grids=((16, 32), (32, 16), (32, 32)), patch=8, fill=(9, 99, 199)
)
QWEN = ImageSpec.preset("qwen2-vl", max_pixels=4 * 56 * 56)
INTERNVL = ImageSpec.preset("internvl", size=56, tiles=4)
LLAVA_NEXT = ImageSpec.preset(
    "llava-next",
    size=56,
    grids=((56, 112), (112, 56), (112, 112)),
    normalize=None,
    dtype=torch.uint8,
)
META = ("key", "valid", "images_per_sample", "num_items_in_batch")
DETAILS = ("source", "sample", "id", "score", "image_geometry")
ALL_META = (*META, *DETAILS, "text")
JINJA = (
    "{% for m in messages %}[{{ m['role'] }}] {% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}"
    "\n{% endfor %}"
)
PLAIN_JINJA = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>\n{% endfor %}"


def recolour(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform: turns, inverts by chance, says what it saw."""
    images = [np.ascontiguousarray(image[::-1]) for image in sample["images"]]
    if generator.integers(2):
        images = [255 - image for image in images]
    record = sample["record"] or {}
    return sample | {"images": images, "text": f"{sample['key']} {record.get('id')}"}


def shifted(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform that leaves the text as it is."""
    by = int(generator.integers(1, 9))
    return sample | {"images": [image[:, by:] for image in sample["images"]]}
