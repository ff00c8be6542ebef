"""Train the reference model on a packed dataset.

    datapipe pack RAW SHARDS
    python -m examples.vlm.train SHARDS --model tiny --steps 50 --pack 2048

Ctrl-C ends after the step at hand; with --save nothing is lost. Several GPUs: torchrun
--nproc-per-node 8 -m examples.vlm.train SHARDS ... There Ctrl-C ends at once; take --save-every.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean

import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, TextSpec
from examples.vlm.attention import AUTO, choose, why_not
from examples.vlm.checkpoint import load, save
from examples.vlm.config import MODELS, ModelConfig
from examples.vlm.interrupt import interruptible
from examples.vlm.loop import Run, train
from examples.vlm.measures import Line, Report, spread
from examples.vlm.mesh import distribute, join_mesh
from examples.vlm.model import VLM
from examples.vlm.options import parse
from examples.vlm.parallel import Parallel, connect, parallel_of
from examples.vlm.profiling import profiled
from examples.vlm.ranks import TIMEOUT, Ranks, joined
from examples.vlm.techniques import Techniques
from examples.vlm.texts import Vocabulary
from examples.vlm.watch import Watch, watched


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and train."""
    options = parse(arguments, __doc__)
    limit = options.rank_timeout or TIMEOUT
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        with joined(options.device, limit) as ranks, watched(ranks, limit) as watch:
            report = run(options, ranks, watch)
            if ranks.first:
                show(report, options)
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        rank = f"rank {os.environ['RANK']}: " if several else ""
        sys.exit(f"train: {rank}{error}")
    except KeyboardInterrupt:
        if not several:
            raise
        said = "train: interrupted; --resume goes on with what --save-every wrote"
        sys.exit(said if os.environ["RANK"] == "0" else 1)


def run(options: argparse.Namespace, ranks: Ranks, watch: Watch | None = None) -> Report:
    """Build model and loader, go on with a checkpoint where there is one, and train.

    Raises:
        ValueError: options contradict each other or the machine.
    """
    ranks.agree(vars(options))
    ranks = join_mesh(ranks, options)
    torch.manual_seed(options.seed + ranks.rank)
    techniques = techniques_of(options)
    config, vocabulary = MODELS[options.model], Vocabulary.of(options.tokenizer)
    kernel = kernel_for(options.attention, techniques, ranks.device)
    loader = make_loader(options, config, vocabulary, ranks)
    if options.global_batch_size:
        techniques = replace(techniques, accumulate=loader.accumulation_steps)
    parallel = parallel_of(options, techniques, ranks)
    state = build(config, vocabulary, kernel, loader, techniques, ranks, parallel, options)
    if watch is not None:
        state.mark = watch.mark
    about = {
        "model": options.model,
        "vocabulary": vocabulary.size,
        "lora": techniques.lora,
        "states of the optimizer in bits": 8 if techniques.optimizer == "8bit" else 32,
    }
    if options.resume:
        state.step = load(options.resume, state.parts(), about, ranks)
        if parallel.hook == "powersgd" and ranks.first:
            print(
                f"PowerSGD starts anew: {parallel.powersgd_start} steps send whole gradients, and "
                "the errors it had kept are lost",
                file=sys.stderr,
            )
    if ranks.first:
        learning = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
        whole = sum(p.numel() for p in state.model.parameters())
        print(f"{learning:,} of {whole:,} parameters learn; attention: {kernel}", file=sys.stderr)

    # Ranks that stopped after different steps would wait for each other for ever.
    alone = ranks.world_size == 1
    with interruptible(alone) as interrupted, profiled(options.profile) as next_step:

        def after_step() -> bool:
            next_step()
            due = options.save_every and state.step % options.save_every == 0
            last = interrupted() or state.step == options.steps
            if options.save and (due or last):
                state.mark("saving a checkpoint", state.step)
                save(
                    options.save,
                    state.parts(),
                    state.step,
                    about,
                    ranks,
                    sharded=state.exchange.divided,
                )
            return not interrupted()

        return train(
            state,
            steps=options.steps,
            warm_up=options.warm_up,
            log=log_line,
            log_every=options.log_every,
            after_step=after_step,
        )


def build(
    config: ModelConfig,
    vocabulary: Vocabulary,
    kernel: str,
    loader: datapipe.Loader,
    techniques: Techniques,
    ranks: Ranks,
    parallel: Parallel,
    options: argparse.Namespace,
) -> Run:
    """Make the model with its optimizer, the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = VLM(config, vocabulary.size, vocabulary.image_id, kernel)
        techniques.apply(model)
    model.to(ranks.device)
    if ranks.mesh is not None:
        distribute(model, ranks.mesh)
    exchange = connect(model, parallel, techniques, ranks)
    return Run(
        model=model,
        loader=loader,
        techniques=techniques,
        optimizer=techniques.make_optimizer(model, rate=options.lr, decay=options.weight_decay),
        scaler=techniques.scaler(ranks.device),
        ranks=ranks,
        exchange=exchange,
        epoch_ends_step=options.global_batch_size is not None,
        peak_rate=options.lr,
        rate_steps=options.lr_steps or options.steps,
        rate_warmup=options.lr_warmup,
    )


def make_loader(
    options: argparse.Namespace, config: ModelConfig, vocabulary: Vocabulary, ranks: Ranks
) -> datapipe.Loader:
    """Batches without end, on the device.

    Raises:
        datapipe.DatapipeError: the dataset cannot be opened, or options contradict each other.
    """
    vision = config.vision
    if options.native:
        image = ImageSpec(
            resize="native",
            patch=vision.patch,
            merge=vision.merge,
            min_pixels=vision.cell**2,
            max_pixels=vision.max_patches * vision.patch**2,
            normalize="siglip",
        )
    else:
        image = ImageSpec(size=vision.image_size, normalize="siglip")
    text = TextSpec(
        tokenizer=vocabulary.tokenizer,
        template=options.template,
        image_tokens="native" if options.native else vision.image_tokens,
        image_token=vocabulary.image,
        max_length=options.max_length,
        overlong=options.overlong,
    )
    pack = None
    if options.static_shapes and options.pack is None:
        raise ValueError("--static-shapes is of packs; give --pack")
    if options.pack is not None:
        pack = datapipe.PackSpec(
            options.pack,
            multiple_of=options.multiple_of or options.context,
            max_images=options.max_images,
            static_shapes=options.static_shapes,
        )
    sizes = {"batch_size": options.batch_size, "buckets": options.buckets}
    if options.pack is None and options.batch_size is None:
        sizes["batch_size"] = 8
    # With a device the loader brings batches there ahead of the loop.
    device = ranks.device if ranks.device.type == "cuda" and options.ahead else None
    cache = None
    if options.cache or options.disk_cache or options.device_cache:
        cache = CacheSpec(
            memory=options.cache, disk=options.disk_cache, device=options.device_cache
        )
    return datapipe.make_loader(
        options.shards,
        image=image,
        text=text,
        pack=pack,
        **sizes,
        seed=options.seed,
        epochs=None,
        run=datapipe.RunSpec(global_batch_size=options.global_batch_size),
        meta=("key", "num_items_in_batch"),
        device=ranks.device if options.device_cache else device,
        cache=cache,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch,
        on_error=options.on_error,
        mesh=ranks.mesh,
    )


def kernel_for(name: str, techniques: Techniques, device: torch.device) -> str:
    """Return the kernel of attention that was asked for, or the fastest one.

    Raises:
        ValueError: it cannot train here.
    """
    if name == AUTO:
        return choose(device, techniques.dtype)
    if reason := why_not(name, device.type, techniques.dtype):
        raise ValueError(f"attention {name!r}: {reason}")
    return name


def techniques_of(options: argparse.Namespace) -> Techniques:
    """Return the switches that are on."""
    names = [field.name for field in fields(Techniques)]
    return Techniques(**{name: getattr(options, name) for name in names})


def log_line(line: Line) -> None:
    """One line for the terminal."""
    text = f"step {line.step:5d}  loss {fmean(line.loss):.3f}"
    if line.norm is not None:
        text += f"  norm {line.norm:.3g}"
    if line.tokens_per_s:  # not in the warm-up
        text += f"  {line.tokens_per_s:8,.0f} tokens/s  waiting {line.wait_share:.1%}"
    if line.ranks:
        text += "\n" + spread(line.ranks)
    print(text, file=sys.stderr, flush=True)


def show(report: Report, options: argparse.Namespace) -> None:
    """Print what was measured, and write it as JSON where that was asked for."""
    memory = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in report.memory.items())
    print(
        f"{report.steps} steps, loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f}; "
        f"{report.samples_per_s:,.1f} samples/s, {report.tokens_per_s:,.0f} tokens/s "
        f"({report.fill:.1%} of what was computed); step {report.step_p50 * 1e3:,.0f} ms, "
        f"P99 {report.step_p99 * 1e3:,.0f} ms; waiting {report.wait_share:.1%}\n"
        f"memory: {memory}\n{report.verdict}",
        file=sys.stderr if options.json == "-" else sys.stdout,
    )
    if options.json is None:
        return
    chosen = {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()}
    text = json.dumps({"options": chosen, "report": report.to_dict()}, indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    else:
        file = Path(options.json)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
