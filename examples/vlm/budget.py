r"""Memory of training, known before there is a GPU.

    python -m examples.vlm.budget --model base --pack 8192 --images 16 --precision bf16 \
        --ranks 8 --zero 3

Parameters, gradients and states of the optimizer are those of the model's tensors. Activations are
a formula over its layers (`activations`). A GPU also holds the CUDA context, some 500 MB, and loses
memory to fragmentation.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from examples.vlm.measure.activations import Numbers, Stage, stages
from examples.vlm.measure.memory import bytes_of
from examples.vlm.model.config import MODELS, ModelConfig
from examples.vlm.model.vlm import VLM
from examples.vlm.options import parser_of
from examples.vlm.techniques import KNOWN, Optimizer, Precision, Techniques

Zero = Literal[0, 1, 2, 3]

BUCKET = 25 * 2**20  # bytes of gradients that ranks exchange at a time; `bucket_cap_mb` of DDP
SWITCHES = ("precision", "optimizer", "recompute", "freeze_vision", "lora", "accumulate")
FITS = 0.9  # share of a device's memory that the peak may take: the formula is exact to a tenth


@dataclass(frozen=True, kw_only=True)
class Load:
    """Batch that a rank computes at a time."""

    tokens: int  # the padding of rows included
    images: int
    patches: int | None = None  # of each image; None for a fixed size
    packed: bool = True  # samples share a row
    native: bool = False  # images differ in size

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.images < 0 or (self.patches is not None and self.patches < 1):
            raise ValueError(
                f"tokens={self.tokens}, images={self.images}, patches={self.patches}: give 1, 0 "
                "and 1, or more"
            )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes of one rank, by use."""

    parameters: int  # this rank's share of them, as with the next two
    gradients: int
    optimizer: int
    batch: int  # ids, labels, pixels and patches of one batch
    activations: int  # kept from the forward to the backward pass
    casts: int  # weights in half precision, kept as long
    working: int  # temporary: a block that is recomputed, logits, gradients of activations
    exchange: int  # buckets of gradients, or weights that FSDP has gathered
    peak: int  # most in use at a time: less than the sum, since gradients come as activations go

    @property
    def total(self) -> int:
        return sum(size for name, size in asdict(self).items() if name != "peak")


def estimate(
    config: ModelConfig,
    load: Load,
    techniques: Techniques | None = None,
    *,
    vocabulary: int = 32_000,
    ranks: int = 1,
    zero: Zero = 0,
    device: str = "cuda",
    kernel: str | None = None,
    bucket_view: bool = True,
) -> Budget:
    """Estimate the memory of a rank.

    Stage `zero` 1 divides states over the ranks, 2 gradients too, 3 parameters too (arXiv
    1910.02054); 0 is DDP, 3 FSDP. With `bucket_view`, gradients are views of DDP's buckets.
    """
    techniques = techniques or Techniques()
    kernel = kernel or ("split" if device == "cpu" else "varlen")
    if kernel == "plain":
        raise ValueError("attention 'plain' keeps every score, and the calculator counts none")
    if ranks < 1 or zero not in get_args(Zero):
        raise ValueError(f"ranks={ranks}, zero={zero}: give 1 or more, and 0, 1, 2 or 3")
    if zero and ranks == 1:
        raise ValueError(f"zero={zero} divides over ranks, and there is 1; give ranks=")
    with torch.device("meta"):  # sizes, and no content
        model = VLM(config, vocabulary, 0, kernel)
        replace(techniques, compile=Techniques.compile).apply(model)  # a size needs no kernels
    each = load.patches or config.vision.image_tokens * config.vision.merge**2
    patches = load.images * each or config.vision.merge**2  # a blank image where there is none
    half = 4 if techniques.precision == "fp32" else 2
    numbers = Numbers(
        tokens=load.tokens,
        patches=patches,
        half=half,
        fused_norm=device != "cpu",
        copied=load.packed and kernel == "split",
        images_copied=load.native and kernel == "split",
        views=kernel != "varlen",  # which copies values
        casts=half < 4 and zero < 3,  # FSDP gathers them in half precision instead
    )
    found = stages(model, numbers)
    learnt = [p for p in model.parameters() if p.requires_grad]
    sharers = ranks if zero == 3 else 1
    parameters = sum(shard(p, sharers) for p in model.parameters()) * 4
    gradients = sum(shard(p, sharers) for p in learnt) * 4
    if zero == 2:
        gradients = -(-gradients // ranks)
    optimizer = states(learnt, techniques.optimizer, sharers)
    if zero in (1, 2):
        optimizer = -(-optimizer // ranks)
    pixels = patches * 3 * config.vision.patch**2 * 4 * (1 if load.native else 2)
    batch = pixels + load.tokens * 5 * 8  # ids, labels, positions, and what follows each
    whole = 4 * sum(p.numel() for p in learnt)
    exchange = exchanged(model, whole, ranks, zero, half, bucket_view)
    there = techniques.accumulate > 1 or techniques.accumulate_tokens or not techniques.set_to_none
    moving = walk(found, gradients if there else 0, gradients)
    return Budget(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        batch=batch,
        activations=sum(stage.kept for stage in found),
        casts=sum(stage.casts for stage in found),
        working=max(stage.working for stage in found),
        exchange=exchange,
        peak=parameters + optimizer + batch + exchange + moving,
    )


def shard(parameter: Tensor, ranks: int) -> int:
    """Return the numbers that the first of some ranks holds: rows are divided, as in FSDP2."""
    rows: int = parameter.shape[0]
    return -(-rows // ranks) * (parameter.numel() // rows)


def states(learnt: Iterable[Tensor], optimizer: Optimizer, ranks: int) -> int:
    """Bytes of AdamW's states: two float32 numbers each and a count of steps for each tensor.

    In 8 bits (bitsandbytes): one byte each, a float32 scale for 256, and small tensors as they are.
    """
    total = 0
    for parameter in learnt:
        size = shard(parameter, ranks)
        if optimizer == "8bit" and size >= 4096:
            total += 2 * (size + 4 * -(-size // 256))
        else:
            total += 8 * size + (0 if optimizer == "8bit" else 4)
    return total


def exchanged(
    model: VLM, gradients: int, ranks: int, zero: Zero, half: int, bucket_view: bool
) -> int:
    """Return the bytes that a rank holds to exchange gradients or weights.

    `gradients` are the bytes of all, `half` those of a number that FSDP exchanges.
    """
    if ranks == 1:
        return 0
    if zero < 2:
        return 0 if bucket_view else gradients
    if zero == 2:
        return min(2 * BUCKET, gradients)
    blocks: list[nn.Module] = [*model.vision.transformer.blocks, *model.language.blocks]
    largest = max(sum(p.numel() for p in block.parameters()) for block in blocks)
    inside = {id(p) for block in blocks for p in block.parameters()}
    # What is in no block stays gathered from the forward to the backward pass. Of the blocks, one
    # is in use and the next one under way; its gradients are whole until they are reduced.
    root = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    return half * (root + 3 * largest)


def walk(found: list[Stage], before: int, all_gradients: int) -> int:
    """Return the most bytes of activations and gradients together in the backward pass.

    `before` and `all_gradients` are those of gradients at its beginning and end, on this rank.
    """
    learnt = sum(stage.gradients for stage in found) or 1
    kept = sum(stage.kept + stage.casts for stage in found)
    made, most = 0.0, 0.0
    for stage in reversed(found):
        made += (all_gradients - before) * stage.gradients / learnt
        most = max(most, before + made + kept + stage.working)
        kept -= stage.kept + stage.casts
    return int(most)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    try:
        found = estimate(
            MODELS[options.model],
            Load(
                tokens=options.pack or options.batch_size * options.length,
                images=options.images,
                patches=options.patches,
                packed=options.pack is not None,
                native=options.native,
            ),
            Techniques(**{name: getattr(options, name) for name in SWITCHES}),
            vocabulary=options.vocabulary,
            ranks=options.ranks,
            zero=options.zero,
            device=options.device,
        )
        limit = bytes_of(options.memory) if options.memory else None
    except ValueError as error:
        sys.exit(f"budget: {error}")
    if options.json:
        print(json.dumps({**asdict(found), "total": found.total}))
        return
    print("MB of one rank")
    uses = asdict(found)
    peak = uses.pop("peak")
    for name, size in (*uses.items(), ("sum", found.total)):
        print(f"{name:14}{size / 1e6:14,.1f}")
    print(f"{'peak':14}{peak / 1e6:14,.1f}   most in use at a time")
    if limit is not None:
        share = found.peak / limit
        verdict = "fits" if share <= FITS else "does not fit" if share > 1 else "may not fit"
        print(f"{verdict}: the peak is {share:.0%} of {limit / 1e6:,.0f} MB")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options by name; `None` takes the command line's."""
    parser = parser_of("budget", __doc__)
    add = parser.add_argument
    add("--model", default="base", choices=tuple(MODELS))
    add("--vocabulary", type=int, default=32_000, metavar="N", help="(default: 32000)")
    add("--pack", type=int, metavar="TOKENS", help="tokens of a pack")
    add("--batch-size", type=int, metavar="N", help="rows of a padded batch, with --length")
    add("--length", type=int, metavar="TOKENS", help="tokens of a row, padding included")
    add("--images", type=int, default=0, metavar="N", help="images of all rows together")
    add("--patches", type=int, metavar="N", help="patches of an image (default: a square's)")
    add("--native", action="store_true", help="images differ in size")
    add("--precision", default="fp32", choices=get_args(Precision))
    add("--optimizer", default="fused", choices=get_args(Optimizer))
    add("--recompute", nargs="?", default="", const="all", metavar="BLOCKS", help=KNOWN)
    add("--freeze-vision", action="store_true", help="do not train the encoder")
    add("--lora", type=int, default=0, metavar="RANK", help="rank of adapters (default: none)")
    add("--accumulate", type=int, default=1, metavar="N", help="batches per step (default: 1)")
    add("--ranks", type=int, default=1, metavar="N", help="number of GPUs (default: 1)")
    add("--zero", type=int, default=0, choices=get_args(Zero), help="stage; 0: DDP, 3: FSDP")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--memory", metavar="SIZE", help="say if the run fits into this memory, such as 80GB")
    add("--json", action="store_true", help="print bytes as JSON")
    options = parser.parse_args(arguments)
    if (options.pack is None) == (options.batch_size is None):
        parser.error("give --pack, or --batch-size and --length")
    if (options.batch_size is None) != (options.length is None):
        parser.error("--batch-size and --length belong together")
    return options


if __name__ == "__main__":
    main()
