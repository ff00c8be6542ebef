"""Command lines of `examples.vlm.train` and `generate`."""

import argparse
import re
from pathlib import Path
from typing import get_args

from examples.vlm.model.attention import AUTO, KERNELS
from examples.vlm.model.config import MODELS
from examples.vlm.parallel.connect import Hook, Kind
from examples.vlm.techniques import KNOWN, Mode, Optimizer, Precision, Rule

_ADVICE = {
    "overlong": "--overlong",
    "max_length": "--max-length",
    "batch_size": "--batch-size",
    "max_images": "--max-images",
    "num_workers": "--num-workers",
    "workers": "--workers",
    "on_error": "--on-error",
    "CacheSpec(memory": "--cache",
    "CacheSpec(disk": "--disk-cache",
    "CacheSpec(device": "--device-cache",
}
"""Options for arguments that messages of datapipe name, alone or in their spec."""


def parse(arguments: list[str] | None, about: str) -> argparse.Namespace:
    """Options of training by name; `None` takes the command line's."""
    parser = _training(about)
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def parse_generate(arguments: list[str] | None, about: str | None) -> argparse.Namespace:
    """Options of `examples.vlm.generate`; those of training have their defaults."""
    parser = parser_of("generate", about)
    parser.add_argument("checkpoint", type=Path, help="what --save of examples.vlm.train wrote")
    _samples(parser)
    _model(parser)
    _answers(parser, samples=4)
    given = parser.parse_args(arguments)
    defaults = _training(None).parse_args([given.shards])
    options = argparse.Namespace(**vars(defaults) | vars(given))
    _check(parser, options)
    return options


def parser_of(module: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a module of `examples.vlm`, whose docstring is `about`."""
    return argparse.ArgumentParser(
        prog=f"python -m examples.vlm.{module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def in_options(message: str) -> str:
    """Name options of the command line where a message of datapipe names arguments.

    Examples:
        >>> in_options("give TextSpec(overlong='drop') or CacheSpec(memory=...)")
        'give --overlong drop or --cache'
    """

    def option(found: re.Match[str]) -> str:
        spec, field, value = found[1] or "", found[2], found[3] or found[4] or ""
        name = _ADVICE.get(f"{spec}{field}", _ADVICE.get(field))
        return found[0] if name is None else f"{name} {value}".strip()

    return re.sub(r"(\w+\()?\b(\w+)=(?:'(\w+)'|(\d+)\b|\.\.\.)(?(1)\))", option, message)


def _training(about: str | None) -> argparse.ArgumentParser:
    parser = parser_of("train", about)
    _samples(parser)
    add = parser.add_argument_group("batches").add_argument
    add("--batch-size", type=int, metavar="N", help="samples, or packs, a step (default: 8, or 1)")
    add("--pack", type=int, metavar="TOKENS", help="tokens of a pack (default: padded batches)")
    add("--buckets", type=int, metavar="N", help="length buckets of padded batches")
    add("--static-shapes", action="store_true", help="packs of constant shapes, for --compile")
    add("--max-images", type=int, metavar="N", help="most images of a pack")
    add("--multiple-of", type=int, metavar="N", help="pad samples of packs (default: --context)")
    add("--prefetch", type=int, default=2, metavar="N", help="batches prepared ahead (default: 2)")
    add("--cache", metavar="SIZE", help="decoded images kept in memory, such as 8GB")
    add("--disk-cache", metavar="FOLDER", help="decoded images, for all ranks of a host")
    add("--device-cache", metavar="SIZE", help="decoded images kept on the device")
    add("--resident", metavar="SIZE", help="all tokens and images of the data on the device")

    _model(parser)
    add = parser.add_argument_group("techniques").add_argument
    add("--model", default="tiny", choices=tuple(MODELS))
    add("--tf32", action="store_true", help="round factors of float32 products on a GPU")
    add("--deterministic", action="store_true", help="equal bits in equal runs on a GPU")
    add(
        "--compile",
        nargs="?",
        default="",
        const="default",
        choices=[mode for mode in get_args(Mode) if mode],
        help="torch.compile every block, in this mode (alone: default)",
    )
    add("--optimizer", default="fused", choices=get_args(Optimizer), help="kind of AdamW")
    add("--zero-gradients", dest="set_to_none", action="store_false", help="do not free them")
    add(
        "--recompute",
        nargs="?",
        default="",
        const="all",
        metavar="BLOCKS",
        help=f"activation checkpointing: {KNOWN} (alone: all)",
    )
    add("--dropout", type=float, default=0.0, metavar="SHARE", help="dropped attention weights")
    add("--freeze-vision", action="store_true", help="train all but the encoder")
    add("--lora", type=int, default=0, metavar="RANK", help="train adapters (and the projector)")
    add(
        "--accumulate",
        type=lambda text: text if text == "auto" else int(text),
        default=1,
        metavar="N",
        help="batches per step; auto: as many as keep the exchange of gradients below a tenth",
    )
    add("--accumulate-tokens", type=int, default=0, metavar="N", help="labels per step, instead")
    add("--accumulate-samples", type=int, default=0, metavar="N", help="samples per step, instead")
    add("--clip", type=float, default=1.0, help="largest norm of gradients (0: any)")
    add("--copy-late", dest="ahead", action="store_false", help="copy batches in each step")
    add("--wait-for-losses", dest="keep_losses", action="store_false", help="wait for every loss")

    add = parser.add_argument_group("ranks (see docs/distributed.md)").add_argument
    add("--parallel", choices=get_args(Kind), help="copies, or shards (default: ddp)")
    add("--hook", choices=get_args(Hook), help="compression of the gradients that DDP sends")
    add("--powersgd-rank", type=int, metavar="N", help="rank of PowerSGD (default: 4)")
    add("--bucket-mb", type=float, metavar="MB", help="gradients sent at a time (default: 25)")
    add("--static-graph", action="store_true", help="DDP assumes the same graph in every step")
    add("--tensor", type=int, default=1, metavar="N", help="ranks that divide heads (default: 1)")
    add("--context", type=int, default=1, metavar="N", help="ranks that divide packs (default: 1)")
    add("--global-batch-size", type=int, metavar="N", help="units per step of all ranks")
    add(
        "--rank-timeout",
        type=float,
        metavar="SECONDS",
        help="end the run after so long without progress, naming the rank (default: 300)",
    )

    add = parser.add_argument_group("run").add_argument
    add("--steps", type=int, default=50, help="total number (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="highest learning rate (default: %(default)s)")
    add("--scale-lr", choices=get_args(Rule), help="scale --lr from a step of --base-batch samples")
    add("--base-batch", type=int, default=0, metavar="SAMPLES", help="of the step --lr is for")
    add("--lr-warmup", type=int, default=10, metavar="STEPS", help="steps until it is reached")
    add("--lr-steps", type=int, metavar="STEPS", help="until it has decayed (default: --steps)")
    add("--weight-decay", type=float, default=0.05)
    add("--save", type=Path, metavar="PATH", help="write a checkpoint at the end")
    add("--save-every", type=int, default=0, metavar="STEPS", help="and every so many steps")
    add("--resume", type=Path, metavar="PATH", help="continue from a checkpoint")
    add("--warm-up", type=int, default=5, metavar="STEPS", help="steps left out of figures")
    add("--log-every", type=int, default=10, metavar="STEPS")
    add("--evaluate", metavar="SHARDS", help="print the loss over a held-out dataset at the end")
    add("--evaluate-every", type=int, default=0, metavar="STEPS", help="and every so many steps")
    add("--json", metavar="FILE", help="write what was measured (-: to standard output)")
    add("--profile", type=Path, metavar="PATH", help="profile steps 8 to 10 (.json, or a folder)")
    add("--profile-shapes", action="store_true", help="add shapes of inputs to the trace")
    add("--profile-stacks", action="store_true", help="add source lines to the trace")
    add("--nvtx", action="store_true", help="ranges of stages and operators for Nsight Systems")
    _answers(parser)
    add = parser.add_argument_group("what it costs").add_argument
    add("--peak-flops", type=float, metavar="N", help="of a device, for MFU (default: known)")
    add(
        "--find-batch-size",
        nargs="?",
        const="",
        metavar="SIZE",
        help="train nothing: find the largest --batch-size, or --pack, that fits into this memory "
        "(default: the GPU's)",
    )
    add("--memory-phases", action="store_true", help="measure memory before and after each pass")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse numbers that are too small, and options that do nothing without another one."""
    least = {"steps": 1, "generate": 0, "new_tokens": 1, "temperature": 0, "top_k": 0}
    least |= {"clip": 0, "lr_warmup": 0, "peak_flops": 1}
    least["rank_timeout"] = 3  # ranks tell each second
    for name, smallest in least.items():
        given = getattr(options, name)
        if given is not None and not given >= smallest:  # NaN is neither below nor above
            parser.error(f"--{name.replace('_', '-')} must be at least {smallest}, got {given}")
    for name, other in (
        ("save_every", "save"),
        ("max_images", "pack"),
        ("evaluate_every", "evaluate"),
        ("base_batch", "scale_lr"),
        ("temperature", "generate"),
        ("top_k", "temperature"),
    ):
        if getattr(options, name) and not getattr(options, other):
            one, two = (f"--{each.replace('_', '-')}" for each in (name, other))
            parser.error(f"{one} does nothing without {two}; give both or neither")
    if options.accumulate == "auto" and options.resume:
        parser.error("--accumulate auto could choose another number than before --resume; give it")


def _samples(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("data").add_argument
    add("shards", help="what `datapipe pack` wrote, here or behind a URL")
    add("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json (default: bytes)")
    add("--template", default="chatml", help="chat template (default: %(default)s)")
    add("--native", action="store_true", help="images near their own size, not squares")
    add("--max-length", type=int, metavar="TOKENS", help="longest sample")
    add(
        "--overlong",
        default="raise",
        choices=("truncate", "drop", "raise"),
        help="treatment of samples longer than that, or than a pack (default: an error)",
    )
    add("--num-workers", type=int, metavar="N", help="default: the CPUs; for a GPU at most 8")
    add("--workers", default="threads", choices=("threads", "processes"), help="kind of workers")
    add("--on-error", default="raise", choices=("raise", "skip"), help="for damaged samples")


def _model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--precision", default="fp32", choices=get_args(Precision))
    add("--attention", default=AUTO, choices=(AUTO, *KERNELS))
    add(
        "--attention-table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="choose the kernel by length, from `python -m benchmarks.attention --json FILE`",
    )
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--seed", type=int, default=0, help="seed of random numbers (default: %(default)s)")


def _answers(parser: argparse.ArgumentParser, samples: int = 0) -> None:
    add = parser.add_argument_group("answers").add_argument
    add(
        "--generate",
        type=int,
        default=samples,
        metavar="N",
        help="let the model answer N samples (default: %(default)s)",
    )
    add("--new-tokens", type=int, default=64, metavar="N", help="longest answer (default: 64)")
    add("--temperature", type=float, default=0.0, help="of sampling (default: likeliest tokens)")
    add("--top-k", type=int, default=0, metavar="N", help="likeliest tokens to draw from (0: all)")
