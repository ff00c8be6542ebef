"""Comparison of a loader's batches with what the processor of a model makes of the same samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.declared import Count, checked
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
from datapipe.loader.make_loader import make_loader
from datapipe.loader.schedule.options import IMAGE_KEYS, TYPE_KEYS
from datapipe.models.families import Model, specs_for
from datapipe.models.files import open_checkpoint
from datapipe.text.encode import SampleText, TextEncoder
from datapipe.text.messages import RenderedTurn, read_turns
from datapipe.text.sample_text import sample_text
from datapipe.text.videos import Video, read_videos

_LEVELS = 1.01
"""Grey levels by which a value may differ: two ways of rounding."""
_SHARE = 1e-3
"""Share of the values of a sample that may differ by more."""
_NESTED = 5  # axes of pixel_values with one in front, for the tiles of Idefics 3
_BESIDE = 4  # tokens shown on each side of the first that differs
_FACTS = tuple(name for name in (*IMAGE_KEYS, *TYPE_KEYS) if not name.startswith("pixel_values"))


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """Result of `check_model`.

    Attributes:
        samples, images: numbers of samples and images that were compared.
        labels: samples whose labels were compared too: something is learnt of them, no answer has
            an image, and the template does not rewrite what was said before.
        differences: the first difference of each sample that differs, as a text of a few lines.

    Examples:
        >>> ModelCheck(samples=2, images=3, differences=()).is_equal
        True
    """

    samples: int
    images: int
    differences: tuple[str, ...]
    labels: int = 0

    @property
    def is_equal(self) -> bool:
        """True if no sample differs."""
        return not self.differences


@checked(PlanError)
def check_model(
    model: Model, dataset: Any, *, samples: Count = 16, where: str | None = None
) -> ModelCheck:
    """Compare what `make_loader(dataset, model=model)` gives with the model's own processor.

    The first samples are taken. Token ids, the facts of images, pixels and labels are compared. A
    processor makes no labels: what is learnt has to be what its template adds to a conversation for
    each answer that is to be learnt, but for blanks. Needs transformers, and for some processors
    torchvision.

    Args:
        model: folder of a checkpoint, or a processor of transformers.
        dataset: dataset in shards, as `make_loader` takes it.
        samples: number of samples to compare.
        where: condition that selects them, as in `make_loader`.

    Raises:
        PlanError: the model is not known, or transformers cannot open its processor.

    Examples:
        >>> datapipe.check_model("no-such-folder/", "shards/")
        Traceback (most recent call last):
            ...
        datapipe.errors.PlanError: model 'no-such-folder/' is not a folder; ...
    """
    image, text = specs_for(model)
    processor, encoder = _processor(model), TextEncoder(text)
    seen: list[Mapping[str, Any]] = []

    def note(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        seen.append(sample)
        return sample

    loader = make_loader(
        dataset,
        image=image,
        text=text,
        transform=note,
        where=where,
        batch_size=1,
        shuffle=False,
        num_workers=0,
        meta=("key",),
    )
    differences, images, labels = [], 0, 0
    with loader:
        for batch in islice(loader, samples):
            sample = seen[-1]
            images += len(sample["images"])
            said = _text(sample)
            messages = encoder.messages(said)
            videos = read_videos(sample["record"]) if image.video is not None else []
            stills, clips = _apart(sample["images"], videos)
            theirs = _processed(processor, messages, stills, clips, videos)
            tokenizer = processor.tokenizer
            told: str | None = _difference(batch, theirs, stills, image, tokenizer)
            turns = read_turns(said, system=text.system, newline=False)
            if not told:
                told = _labels(batch["labels"][0], messages, turns, processor)
                labels += told is not None
            if told:
                differences.append(f"{batch['key'][0]}: {told}")
    return ModelCheck(
        samples=len(seen), images=images, differences=tuple(differences), labels=labels
    )


def _processor(model: Any) -> Any:
    if hasattr(model, "image_processor"):
        return model
    try:
        from transformers import AutoProcessor
    except ImportError as error:
        raise PlanError(
            "a model is compared with its processor in transformers; run `pip install transformers`"
        ) from error
    folder = open_checkpoint(model).name
    try:
        return AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            folder, local_files_only=True
        )
    except Exception as error:  # of many kinds, and from code of many
        raise PlanError(
            f"transformers cannot open the processor of {folder}: {error}. Some need `pip install "
            "torchvision`; or give the processor itself"
        ) from error


def _text(sample: Mapping[str, Any]) -> SampleText:
    record, caption = sample["record"], sample["text"]
    if record is not None and sample_text(None, record) == caption:
        caption = None
    return SampleText(caption, record, len(sample["images"]))


def _apart(images: Sequence[Any], videos: Sequence[Video]) -> tuple[list[Any], list[Any]]:
    """Return the images of a sample that are no frames, and the frames of each video: [n, ...]."""
    spans = [slice(video.first, video.first + len(video.times)) for video in videos]
    frames = {number for span in spans for number in range(span.start, span.stop)}
    stills = [np.asarray(image) for number, image in enumerate(images) if number not in frames]
    return stills, [np.stack(images[span]) for span in spans]


def _processed(
    processor: Any,
    messages: list[Any],
    pictures: list[Any],
    clips: list[Any],
    videos: Sequence[Video],
) -> dict[str, Any]:
    text = processor.apply_chat_template(messages, tokenize=False)
    bos = processor.tokenizer.bos_token
    begun = bos is not None and text.startswith(bos)
    of_videos: dict[str, Any] = {}
    if clips:
        metadata = [
            {
                "total_num_frames": round(video.duration * video.fps),
                "fps": video.fps,
                "frames_indices": [round(time * video.fps) for time in video.times],
            }
            for video in videos
        ]
        of_videos = {"videos": clips, "video_metadata": metadata, "do_sample_frames": False}
    found = processor(
        # One list for each text, by which some tell whether an image is alone.
        images=[pictures] if pictures else None,
        text=[text],
        add_special_tokens=not begun,
        **of_videos,
    )
    return dict(found)


def _difference(
    batch: Mapping[str, Any],
    theirs: Mapping[str, Any],
    pictures: Sequence[Any],
    spec: ImageSpec,
    tokenizer: Any,
) -> str:
    ours = batch["input_ids"][0].tolist()
    if told := _ids(ours, list(map(int, theirs["input_ids"][0])), tokenizer):
        return told
    for name in _FACTS:
        if name in theirs and name in batch:
            facts = np.asarray(theirs[name], batch[name].numpy().dtype).tolist()
            if batch[name].tolist() != facts:
                return f"{name} is {batch[name].tolist()}, the processor's {facts}"
    if "pixel_values_videos" in batch:
        values = torch.as_tensor(np.asarray(theirs["pixel_values_videos"]))
        if told := _pixels(batch["pixel_values_videos"], values, spec):
            return f"of videos, {told}"
    if not pictures:
        return ""
    pixels = batch["pixel_values"]
    if pixels.ndim == _NESTED:
        return _pixels(pixels[0], torch.as_tensor(np.asarray(theirs["pixel_values"][0])), spec)
    return _pixels(pixels, _rows(theirs["pixel_values"], pictures, spec), spec)


def _labels(
    labels: Tensor, messages: list[Any], turns: Sequence[RenderedTurn], processor: Any
) -> str | None:
    """Return how what is learnt differs from what the template adds for the answers to be learnt.

    None if the template cannot say. `turns` are those that `messages` were made from.
    """

    def render(told: list[Any], **options: Any) -> str:
        return str(processor.apply_chat_template(told, tokenize=False, **options))

    answers = []
    for number, turn in enumerate(turns):
        if turn.trained:
            if not all(isinstance(piece, str) for piece in turn.pieces):
                return None  # of an image, only some templates learn what is around it
            before = render(messages[:number], add_generation_prompt=True)
            after = render(messages[: number + 1])
            if not after.startswith(before):
                return None  # the template rewrites what was said before
            answers.append(after[len(before) :])
    learnt = labels[labels >= 0].tolist()
    if not learnt and not answers:
        return None
    ours, theirs = processor.tokenizer.decode(learnt), " ".join(answers)
    if "".join(ours.split()) == "".join(theirs.split()):
        return ""
    return f"labels differ\n    datapipe   {ours!r}\n    processor  {theirs!r}"


def _ids(ours: list[int], theirs: list[int], tokenizer: Any) -> str:
    if ours == theirs:
        return ""
    pairs = zip(ours, theirs, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    window = slice(max(at - _BESIDE, 0), at + _BESIDE + 1)
    here, there = (
        " ".join(repr(tokenizer.decode([token])) for token in ids[window]) or "the end"
        for ids in (ours, theirs)
    )
    return (
        f"token {at} differs, of {len(ours)} tokens and {len(theirs)} of the processor\n"
        f"    datapipe   {here}\n    processor  {there}"
    )


def _rows(pixels: Any, pictures: Sequence[Any], spec: ImageSpec) -> Tensor:
    """Return the pixels of a processor without the tiles by which it pads smaller images."""
    if getattr(pixels[0], "ndim", 0) == 4:
        sizes = np.array([picture.shape[:2] for picture in pictures], np.int64)
        form = make_transform(spec)
        if len(sizes) > 1 and form.of_several is not None:
            form = form.of_several
        counts = form.rows(sizes[:, 1], sizes[:, 0]).tolist()
        kept = zip(pixels, counts, strict=True)
        return torch.cat([torch.as_tensor(tiles[:count]).float() for tiles, count in kept])
    return torch.from_numpy(np.asarray(pixels, np.float32))


def _pixels(ours: Tensor, theirs: Tensor, spec: ImageSpec) -> str:
    if ours.shape != theirs.shape:
        return f"pixel_values has shape {list(ours.shape)}, the processor's {list(theirs.shape)}"
    std = torch.tensor(spec.mean_std[1] if spec.mean_std else (1.0, 1.0, 1.0)).view(3, 1)
    off = (ours.float() - theirs).reshape(len(ours), 3, -1).abs() * std * 255
    share = float((off > _LEVELS).double().mean())
    if share <= _SHARE:
        return ""
    return (
        f"{share:.2%} of pixel_values differ by more than one grey level, by {off.max():.1f} at "
        "most; the backend that is meant is the one of Pillow"
    )
