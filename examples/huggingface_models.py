"""Train models of Hugging Face on a packed dataset: LLaVA, Qwen2-VL and SmolVLM.

    datapipe pack RAW SHARDS
    python examples/huggingface_models.py SHARDS --family qwen2-vl --pack 1024 --steps 20

Each family is a model made from a config, tiny and untrained, with the `ImageSpec` and the
`image_tokens` of a `TextSpec` that go with it; comments say what trained checkpoints want instead.
Batches, padded (`batch_size=`) or packed (`pack=`), are what `model(**batch).loss` takes, and their
loss is that of their samples one by one. Needs transformers 5.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, from any folder
import datapipe
from datapipe.text.encode import TextEncoder
from examples.vlm.data.texts import byte_tokenizer


@dataclass(frozen=True, kw_only=True)
class Size:
    """Width, heads and layers, of the vision tower and of the language model alike."""

    width: int = 64
    heads: int = 4
    layers: int = 2

    def options(self, **others: Any) -> dict[str, Any]:
        """Names of fields in most configs, and in others."""
        return {
            "hidden_size": self.width,
            "intermediate_size": 2 * self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            **others,
        }

    def text(self, encoder: TextEncoder) -> dict[str, Any]:
        """Return the options of a language model."""
        return self.options(
            num_key_value_heads=self.heads,
            vocab_size=encoder.vocab_size,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
            # With a cache transformers does not look for packs in position_ids, and samples of a
            # pack would see each other.
            use_cache=False,
        )


TINY = Size()


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model, and what its batches are made of.

    Attributes:
        build: makes the model, of a `TextEncoder` (its vocabulary, and the token that is repeated
            for an image), a size, and an attention implementation of transformers.
        image: for `make_loader`.
        image_tokens: for `TextSpec`. Tokenizer and template are those of the language model.
    """

    build: Callable[[TextEncoder, Size, str], nn.Module]
    image: datapipe.ImageSpec
    image_tokens: int | Literal["native"]


def square_tokens(image: datapipe.ImageSpec) -> int:
    """Tokens that a model makes of an image of one size."""
    unit = image.patch_side * image.merge
    return (image.height // unit) * (image.width // unit)


# Of LLaVA-1.5: size=336, which is 576 tokens.
LLAVA = datapipe.ImageSpec.preset("clip", size=56, patch=14)


def build_llava(encoder: TextEncoder, size: Size = TINY, attention: str = "sdpa") -> nn.Module:
    """Make a CLIP tower whose last layer but one is projected into a Llama."""
    import transformers

    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **size.options(image_size=LLAVA.height, patch_size=LLAVA.patch_side)
        ),
        text_config=transformers.LlamaConfig(**size.text(encoder)),
        image_seq_length=square_tokens(LLAVA),
    )
    return _make(config, encoder, attention)


# Of a trained checkpoint: the limits of its processor, which the preset has by default. The preset
# sets mrope=True, so batches bring the positions that the model would need token types to count.
QWEN2_VL = datapipe.ImageSpec.preset("qwen2-vl", min_pixels=4 * 28**2, max_pixels=16 * 28**2)


def build_qwen2_vl(encoder: TextEncoder, size: Size = TINY, attention: str = "sdpa") -> nn.Module:
    """Make a tower for images of their own size, and a Qwen2 that rotates along three axes."""
    import transformers

    half = size.width // size.heads // 2
    rows = 3 * half // 8  # 16, 24 and 24 of 64, as in the trained models
    rotation = {"rope_type": "default", "mrope_section": [half - 2 * rows, rows, rows]}
    config = transformers.Qwen2VLConfig(
        vision_config=size.options(
            embed_dim=size.width,
            patch_size=QWEN2_VL.patch_side,
            spatial_merge_size=QWEN2_VL.merge,
            temporal_patch_size=QWEN2_VL.temporal,
        ),
        text_config={**size.text(encoder), "rope_parameters": rotation},
    )
    return _make(config, encoder, attention)


# Of SmolVLM2, its images not split: size=512, patch=16, merge=4, which is 64 tokens.
SMOLVLM = datapipe.ImageSpec.preset("siglip", size=64, patch=16, merge=2)


def build_smolvlm(encoder: TextEncoder, size: Size = TINY, attention: str = "sdpa") -> nn.Module:
    """Make a SigLIP tower whose patches are merged into the tokens of a Llama."""
    import transformers

    config = transformers.SmolVLMConfig(
        vision_config=size.options(image_size=SMOLVLM.height, patch_size=SMOLVLM.patch_side),
        text_config=transformers.LlamaConfig(**size.text(encoder)),
        scale_factor=SMOLVLM.merge,
        use_cache=False,
    )
    model = _make(config, encoder, attention)
    take_flat_images(model)
    return model


def take_flat_images(model: nn.Module) -> None:
    """Let a SmolVLM take `pixel_values` of [images, 3, H, W].

    Its own form is [samples, images, 3, H, W], where samples with fewer images than others are
    filled up with zeros. It takes these out again and fills placeholders in flat order, so all
    images can be those of one sample. But a sample that was skipped (`on_error="skip"`) has images
    of zeros too, and placeholders for them: they become ones, in a sample whose labels count
    nothing. Rows that `static_shapes` fills up have no placeholders, and go.
    """

    def flat(module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[Any, Any]:
        pixels = inputs.get("pixel_values")
        if pixels is not None and pixels.ndim == 4:
            tokens = int((inputs["input_ids"] == module.config.image_token_id).sum())
            pixels = pixels[: tokens // module.model.image_seq_len]
            blank = (pixels == 0).flatten(1).all(dim=1)
            pixels = torch.where(blank[:, None, None, None], 1.0, pixels)
            inputs = {**inputs, "pixel_values": pixels[None] if len(pixels) else None}
        return args, inputs

    model.register_forward_pre_hook(flat, with_kwargs=True)


def _make(config: Any, encoder: TextEncoder, attention: str) -> nn.Module:
    import transformers

    if encoder.image_id is None:
        raise ValueError(
            "the tokenizer has no token that is repeated for an image; add one, such as <image>"
        )
    config.image_token_id = encoder.image_id
    auto: Any = transformers.AutoModelForImageTextToText  # whose methods have no types
    made: nn.Module = auto.from_config(config, attn_implementation=attention)
    return made


FAMILIES = {
    "llava": Family(build=build_llava, image=LLAVA, image_tokens=square_tokens(LLAVA)),
    "qwen2-vl": Family(build=build_qwen2_vl, image=QWEN2_VL, image_tokens="native"),
    "smolvlm": Family(build=build_smolvlm, image=SMOLVLM, image_tokens=square_tokens(SMOLVLM)),
}


def make_tiny(
    name: str, tokenizer: Path | None = None, attention: str = "sdpa"
) -> tuple[nn.Module, dict[str, Any]]:
    """Make a family's model with fixed weights, and `image=` and `text=` of a loader.

    Without a tokenizer, texts are spelled in bytes.
    """
    family = FAMILIES[name]
    text = datapipe.TextSpec(
        tokenizer=tokenizer or byte_tokenizer(),
        template="chatml",
        image_tokens=family.image_tokens,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = family.build(TextEncoder(text), TINY, attention)
    return model, {"image": family.image, "text": text}


def train(model: nn.Module, batches: Iterable[dict[str, Any]]) -> Iterator[float]:
    """Train on each batch; yields its loss, in nats a token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    device = next(model.parameters()).device
    model.train()
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, train, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards", type=Path, help="a folder made by `datapipe pack`")
    parser.add_argument("--family", choices=FAMILIES, default="llava")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; bytes where none is given")
    parser.add_argument("--pack", type=int, help="tokens of a packed batch; padded without it")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a padded batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attention", default="sdpa", help="as transformers names it: %(default)s")
    asked = parser.parse_args(arguments)
    if find_spec("transformers") is None:
        sys.exit("this example trains models of transformers: pip install transformers")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model, specs = make_tiny(asked.family, asked.tokenizer, asked.attention)
        loader = datapipe.make_loader(
            asked.shards,
            **specs,
            pack=asked.pack,
            batch_size=asked.batch_size if asked.pack is None else None,
            epochs=None,
            run=datapipe.RunSpec(max_steps=asked.steps),
            device=device,
        )
        model.to(device)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{asked.family}: {parameters:,} parameters on {device}")
        for step, loss in enumerate(train(model, loader), start=1):
            print(f"step {step:4d}  loss {loss:.3f}", flush=True)
    except (ValueError, ImportError) as error:  # of datapipe, and of attention not installed
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
