"""The golden configurations: what a loader is asked for, by name."""

from dataclasses import replace

import torch

from datapipe import BatchSpec, DeviceSpec, ImageSpec, PackSpec, RunSpec

from .cases import Case, case
from .ways import (
    ALL_META,
    ANYRES,
    ARRAYS,
    BOTH,
    DETAILS,
    DEVICE,
    DISK,
    ENCODED,
    INTERNVL,
    JINJA,
    LLAVA_NEXT,
    MEMORY,
    META,
    NATIVE,
    ON_DEVICE,
    PLAIN_JINJA,
    PLANNED,
    PROCESSES,
    QWEN,
    SERVED,
    SMALL,
    TILES,
    free,
    image,
    recolour,
    shifted,
    text,
)

_IMAGES: dict[str, Case] = {
    "stretch": case(
        image=image(),
        meta=DETAILS,
        epochs=2,
        same=(MEMORY, DISK, BOTH, SMALL, PROCESSES, ARRAYS, SERVED, DEVICE),
    ),
    "stretch float32": case(
        image=image(normalize="imagenet"), epochs=2, same=(MEMORY, DISK, DEVICE, ON_DEVICE, ARRAYS)
    ),
    "stretch bfloat16": case(
        image=image(normalize="clip", dtype=torch.bfloat16), same=(ARRAYS, DEVICE)
    ),
    "stretch unnormalized": case(image=image(dtype=torch.float32)),
    "stretch bicubic": case(image=image(size=(24, 40), interpolation="bicubic")),
    "own mean": case(image=image(normalize=((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))), same=(ARRAYS,)),
    "pad": case(image=image(size=(20, 28), resize="pad"), meta=("image_geometry",), same=(MEMORY,)),
    "pad fill": case(image=image(resize="pad", fill=(1, 2, 3), normalize="siglip")),
    "crop": case(image=image(resize="crop"), meta=("image_geometry",)),
    "crop from": case(image=image(resize="crop", crop_from=20, normalize="clip")),
    "random crop": case(
        image=image(resize="crop", random_crop=(0.3, 1.0), flip=0.5),
        meta=("image_geometry",),
        epochs=2,
        same=(ENCODED,),
    ),
    "flip": case(
        image=image(flip=0.5, normalize="clip"), meta=("image_geometry",), same=(MEMORY, ARRAYS)
    ),
    "scaled decode": case(image=image(scaled_decode=True)),
    "shortest": case(image=image(resize="shortest"), meta=("image_geometry",), same=(MEMORY,)),
    "dynamic": case(image=free("dynamic"), meta=("image_geometry",)),
    "native": case(image=NATIVE, meta=("image_geometry",), epochs=2, same=(MEMORY, DISK)),
    "native float32": case(image=free("native", normalize="clip")),
    "tiles": case(image=TILES, meta=("image_geometry",), same=(MEMORY,)),
    "tiles without thumbnail": case(image=replace(TILES, thumbnail=False)),
    "anyres": case(image=ANYRES, meta=("image_geometry",), same=(MEMORY,)),
    "preset imagenet": case(image=ImageSpec.preset("imagenet", size=48, crop_from=56)),
    "preset clip": case(image=ImageSpec.preset("clip", size=56)),
    "preset siglip": case(image=ImageSpec.preset("siglip", size=56)),
    "preset qwen2-vl": case(image=QWEN),
    "preset internvl": case(image=INTERNVL),
    "preset llava-next": case(image=LLAVA_NEXT),
    "no images": case(image=None, meta=("source", "id", "score"), same=(ARRAYS,)),
    "channels last": case(
        image=image(normalize="clip"), device=DeviceSpec("cpu", channels_last=True)
    ),
    "unverified": case(verify=False, batch_size=7),
    "own transform": case(transform=recolour, epochs=2, meta="id", same=(PROCESSES, ENCODED)),
}

_ORDERS: dict[str, Case] = {
    "not shuffled": case(shuffle=False, batch_size=5, same=(SERVED,)),
    "shards mixed": case(shuffle="shards", shards_mixed=2, epochs=2),
    "another seed": case(seed=1234, batch_size=6),
    "two ranks": case(batch_size=3, meta=("sample",), world=2, same=(ARRAYS, MEMORY)),
    "three ranks, two epochs": case(batch_size=3, epochs=2, world=3),
    "three ranks, last dropped": case(batch_size=3, drop_last=True, epochs=2, world=3),
    "two ranks, shards mixed": case(shuffle="shards", shards_mixed=3, world=2),
    "where": case(where="width > 40 and images == 1", same=(ARRAYS,)),
    "where text": case(where="images == 0 or height < 36", meta=("sample",)),
    "exclude": case(
        exclude=["000000003", 17, {"epoch": 0, "start": 8, "stop": 12}], meta=("source",)
    ),
    "max_steps": case(epochs=None, run=RunSpec(max_steps=25), batch_size=4, world=2),
    "damaged": case(
        on_error="skip", batch_size=6, meta=DETAILS, epochs=2, data="damaged", same=(MEMORY,)
    ),
    "damaged native": case(on_error="skip", image=NATIVE, data="damaged"),
    "damaged packs": case(on_error="skip", text=text(), pack=400, meta=META, data="damaged"),
    "foreign tars": case(batch_size=5, epochs=2, meta=("source",), data="tars"),
    "captions": case(batch_size=5, meta=("source",), data="captions"),
    "shrunk": case(batch_size=5, meta=DETAILS, data="shrunk"),
}

_TOKENS: dict[str, Case] = {
    "chatml": case(text=text(), meta=ALL_META, same=(ARRAYS, PROCESSES)),
    "llava": case(text=text(template="llava", system="Be brief."), meta=META),
    "jinja": case(text=text(template=JINJA), meta=META),
    "jinja without generation": case(text=text(template=PLAIN_JINJA), meta=META),
    "system": case(text=text(system="You are terse."), image=None, meta=META),
    "anyres of one alone": case(
        image=replace(ANYRES, anyres_max=2, pad_several=(9, 99, 199)),
        text=text(image_tokens=None),
        meta=ALL_META,
        same=(PROCESSES, ENCODED),
    ),
    "token types": case(text=text(token_types=True), meta=META, same=(DEVICE,)),
    "caption": case(text=text(template="caption", image_tokens=3), meta=META, data="captions"),
    "caption packs of tars": case(
        text=text(template="caption", image_tokens=3), pack=96, meta=META, data="tars"
    ),
    "truncated": case(
        text=text(max_length=48, overlong="truncate"), meta=META, epochs=2, same=(MEMORY, ARRAYS)
    ),
    "dropped": case(text=text(max_length=64, overlong="drop"), meta=META),
    "where tokens": case(text=text(), where="text_tokens < 90 and images > 0", meta=META),
    "padded, two ranks": case(text=text(), batch_size=3, meta=META, world=2),
    "padded to a length": case(
        text=text(max_length=300, overlong="truncate"),
        batch_size=BatchSpec(4, pad_to=320, sample_images=3),
        meta=META,
        epochs=2,
        world=2,
        same=(ARRAYS, PROCESSES, DEVICE),
    ),
    "padded to a multiple": case(
        text=text(), batch_size=BatchSpec(3, multiple_of=64), buckets=3, meta=META, same=(MEMORY,)
    ),
    "padded patches": case(
        text=text(image_tokens="native", overlong="drop"),
        batch_size=BatchSpec(3, pad_to=300, sample_patches=120),
        image=NATIVE,
        meta=META,
        same=(MEMORY,),
    ),
    "buckets": case(text=text(), buckets=3, meta=META, world=2),
    "bucket boundaries": case(text=text(), buckets=[60, 120], batch_size=3, meta=META),
    "max_tokens": case(
        text=text(max_length=400, overlong="truncate"), max_tokens=500, meta=META, same=(ARRAYS,)
    ),
    "max_tokens, buckets": case(
        text=text(max_length=400, overlong="drop"),
        max_tokens=500,
        buckets=2,
        batch_size=6,
        meta=META,
        epochs=2,
        world=2,
    ),
    "train_tokens": case(
        text=text(), epochs=None, run=RunSpec(train_tokens=9000), batch_size=5, meta=META
    ),
    "global_batch_size": case(
        text=text(), batch_size=2, run=RunSpec(global_batch_size=8), meta=META, world=2
    ),
}

_PAIRS: dict[str, Case] = {
    "pairs": case(
        text=text(pairs=True),
        batch_size=3,
        meta=ALL_META,
        epochs=2,
        world=2,
        data="pairs",
        same=(MEMORY, PROCESSES, DEVICE),
    ),
    "pairs, truncated": case(
        text=text(pairs=True, max_length=60, overlong="truncate"), meta=META, data="pairs"
    ),
    "pairs, max_tokens": case(
        text=text(pairs=True, overlong="drop"), max_tokens=700, buckets=2, meta=META, data="pairs"
    ),
    "pairs, mrope": case(
        text=text(pairs=True, image_tokens="native", image_token="<|image_pad|>"),
        image=QWEN,
        batch_size=2,
        meta=META,
        data="pairs",
    ),
    "prompts": case(
        text=text(prompts=True), meta=(*META, "conversations"), same=(MEMORY, PROCESSES)
    ),
    "prompts of pairs": case(
        text=text(prompts=True, max_length=60, overlong="drop"), buckets=2, meta=META, data="pairs"
    ),
}

_OVERLONG = {"max_length": 400, "overlong": "truncate"}
_PACKS: dict[str, Case] = {
    "packs": case(
        text=text(**_OVERLONG),
        pack=400,
        meta=ALL_META,
        epochs=2,
        same=(ARRAYS, MEMORY, SERVED, PLANNED),
    ),
    "packs, window of 4": case(
        text=text(**_OVERLONG), pack=PackSpec(400, window=4), meta=META, world=2
    ),
    "packs, three ranks": case(text=text(), pack=512, meta=META, epochs=2, world=3),
    "two packs a batch": case(text=text(), pack=512, batch_size=2, meta=META, same=(PROCESSES,)),
    "packs, multiple of 8": case(text=text(), pack=PackSpec(512, multiple_of=8), meta=META),
    "packs, static": case(
        text=text(),
        pack=PackSpec(512, static_shapes=True),
        meta=META,
        same=(ARRAYS, MEMORY),
    ),
    "packs, static with max_images": case(
        text=text(),
        pack=PackSpec(512, static_shapes=True, max_images=4, max_samples=6),
        meta=META,
    ),
    "packs, max_images": case(
        text=text(), pack=PackSpec(600, max_images=3, max_samples=4), meta=META
    ),
    "packs, group of 6": case(text=text(), pack=512, group=6, meta=META, world=2),
    "packs, not shuffled": case(text=text(), pack=512, shuffle=False, meta=META),
    "packs, shards mixed": case(text=text(), pack=512, shuffle="shards", shards_mixed=2, meta=META),
    "packs, excluded": case(
        text=text(), pack=512, exclude=[1, "000000012"], where="width > 24", meta=META
    ),
    "packs without images": case(text=text(), pack=512, image=None, meta=META, same=(ARRAYS,)),
    "packs, own transform": case(text=text(), pack=512, transform=shifted, meta=META),
    "packs, native": case(
        text=text(image_tokens="native"),
        pack=PackSpec(400, max_patches=120),
        image=NATIVE,
        meta=META,
        same=(MEMORY,),
    ),
    "packs, native, static": case(
        text=text(image_tokens="native"),
        pack=PackSpec(512, max_patches=160, static_shapes=True),
        image=NATIVE,
        meta=META,
    ),
    "packs, mrope": case(
        text=text(image_tokens="native", image_token="<|image_pad|>"),
        pack=512,
        image=replace(NATIVE, mrope=True),
        meta=META,
        world=2,
    ),
    "padded, mrope": case(
        text=text(image_tokens="native", image_token="<|image_pad|>"),
        image=QWEN,
        meta=META,
        batch_size=3,
        same=(PROCESSES,),
    ),
    "packs, tiles": case(
        text=text(image_tokens="per-tile", image_token="<IMG_CONTEXT>"),
        pack=PackSpec(512, max_patches=24),
        image=TILES,
        meta=META,
    ),
    "packs, anyres": case(text=text(image_tokens="per-tile"), pack=512, image=ANYRES, meta=META),
    "packs, dynamic": case(
        text=text(image_tokens="native"), pack=512, image=free("dynamic"), meta=META
    ),
    "packs, shortest": case(
        text=text(image_tokens="native"),
        pack=512,
        image=image(resize="shortest", patch=8),
        meta=META,
    ),
}

_DALI: dict[str, Case] = {
    "dali stretch": case(decoder="dali", image=image(), epochs=2, needs="nvidia.dali"),
    "dali pad": case(
        decoder="dali",
        image=image(size=(20, 28), resize="pad", normalize="clip"),
        meta=("image_geometry",),
        needs="nvidia.dali",
    ),
    "dali random crop, packs": case(
        decoder="dali",
        image=image(resize="crop", random_crop=(0.3, 1.0), flip=0.5),
        text=text(),
        pack=512,
        meta=META,
        needs="nvidia.dali",
    ),
    "dali damaged": case(
        decoder="dali", on_error="skip", meta=DETAILS, data="damaged", needs="nvidia.dali"
    ),
}

_RESUMED: dict[str, Case] = {
    "resumed": case(batch_size=4, meta=("sample",), epochs=2, stop=13, same=(ARRAYS, MEMORY)),
    "resumed from two ranks by three": case(
        batch_size=3, epochs=2, meta=("sample",), world=2, stop=5, goes_on=3
    ),
    "resumed from three ranks by one": case(
        batch_size=2, image=NATIVE, shuffle="shards", shards_mixed=2, world=3, stop=4, goes_on=1
    ),
    "resumed, random": case(
        image=image(random_crop=(0.3, 1.0), flip=0.5),
        transform=shifted,
        epochs=2,
        stop=4,
        goes_on=2,
    ),
    "resumed packs": case(text=text(), pack=512, meta=META, epochs=2, world=2, stop=3, goes_on=1),
    "resumed packs, native": case(
        text=text(image_tokens="native", max_length=300, overlong="truncate"),
        pack=PackSpec(400, max_patches=200),
        image=NATIVE,
        where="width > 24",
        meta=META,
        epochs=2,
        world=1,
        stop=6,
        goes_on=3,
    ),
    "resumed max_tokens": case(
        text=text(), max_tokens=700, buckets=2, meta=META, epochs=2, world=1, stop=5, goes_on=2
    ),
    "resumed max_steps": case(
        epochs=None, run=RunSpec(max_steps=20), batch_size=5, stop=11, goes_on=1
    ),
    "resumed train_tokens": case(
        text=text(),
        epochs=None,
        run=RunSpec(train_tokens=9000),
        pack=512,
        meta=META,
        world=2,
        stop=5,
        goes_on=2,
    ),
}

_VIDEOS: dict[str, Case] = {
    "videos": case(text=text(), batch_size=2, meta=ALL_META, data="videos", same=(MEMORY,)),
    "videos, max_frames": case(
        image=image(max_frames=4),
        text=text(),
        batch_size=2,
        meta=ALL_META,
        epochs=2,
        data="videos",
        same=(MEMORY, DISK, PROCESSES, DEVICE),
    ),
    "videos, random crop": case(
        image=image(resize="crop", random_crop=(0.3, 1.0), flip=0.5, max_frames=3),
        text=text(),
        batch_size=2,
        meta=("image_geometry",),
        epochs=2,
        data="videos",
    ),
    "videos, packs": case(
        image=image(max_frames=8), text=text(), pack=128, meta=META, world=2, data="videos"
    ),
    "videos, packs, native, mrope": case(
        image=replace(NATIVE, mrope=True, max_frames=4),
        text=text(image_tokens="native", image_token="<|image_pad|>"),
        pack=512,
        meta=META,
        data="videos",
    ),
    "resumed videos, max_frames": case(
        image=image(max_frames=4),
        text=text(),
        batch_size=1,
        meta=META,
        epochs=2,
        data="videos",
        stop=3,
        goes_on=1,
    ),
}

CASES: dict[str, Case] = _IMAGES | _ORDERS | _TOKENS | _PAIRS | _PACKS | _DALI | _RESUMED | _VIDEOS
