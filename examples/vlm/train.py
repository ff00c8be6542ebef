"""Train the reference model on a packed dataset.

    datapipe pack RAW SHARDS
    python -m examples.vlm.train SHARDS --model tiny --steps 50 --pack 2048

Ctrl-C ends after the step at hand; with --save nothing is lost. Several GPUs: torchrun
--nproc-per-node 8 -m examples.vlm.train SHARDS ... There Ctrl-C ends at once; take --save-every.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, TextSpec
from examples.vlm.accumulate import samples_of_step
from examples.vlm.attention import AUTO, Table, choose, choose_by, why_not
from examples.vlm.checkpoint import load, save
from examples.vlm.compiling import check_compiler
from examples.vlm.config import MODELS, ModelConfig
from examples.vlm.evaluate import Evaluation, evaluate
from examples.vlm.exchange import accumulate_automatically
from examples.vlm.interrupt import interruptible
from examples.vlm.loop import Run, train
from examples.vlm.measures import Line, Report
from examples.vlm.model import VLM
from examples.vlm.options import parse
from examples.vlm.profiling import profiled
from examples.vlm.ranks import Ranks, joined
from examples.vlm.sampling import write_samples
from examples.vlm.schedule import scaled_rate
from examples.vlm.techniques import Techniques
from examples.vlm.texts import Vocabulary

# A dataset that is read in order, once in a while, is kept nowhere.
NO_CACHE = {"cache": None, "device_cache": None, "resident": None}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and train."""
    options = parse(arguments, __doc__)
    try:
        with joined(options.device) as ranks:
            report = run(options, ranks)
            if ranks.first:
                show(report, options)
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"train: {error}")


def run(options: argparse.Namespace, ranks: Ranks) -> Report:
    """Build model and loader, go on with a checkpoint where there is one, and train.

    Raises:
        ValueError: options contradict each other or the machine.
    """
    torch.manual_seed(options.seed + ranks.rank)
    techniques = techniques_of(options)
    config, vocabulary = MODELS[options.model], Vocabulary.of(options.tokenizer)
    check_compiler(techniques.compile, ranks.device)
    kernel = kernel_for(options.attention, techniques, ranks.device, options.attention_table)
    loader = make_loader(options, config, vocabulary, ranks)
    state = build(config, vocabulary, kernel, loader, techniques, ranks, options)
    if options.accumulate == "auto":
        accumulate_automatically(state)
    scale_rate(state, options)
    about = {
        "model": options.model,
        "vocabulary": vocabulary.size,
        "lora": techniques.lora,
        "states of the optimizer in bits": 8 if techniques.optimizer == "8bit" else 32,
    }
    if options.resume:
        state.step = load(options.resume, state.parts(), about, ranks)
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
                save(options.save, state.parts(), state.step, about, ranks)
            return not interrupted()

        report = train(
            state,
            steps=options.steps,
            warm_up=options.warm_up,
            log=log_line,
            log_every=options.log_every,
            after_step=after_step,
            evaluate=evaluation(state, options, vocabulary) if options.evaluate else None,
            evaluate_every=options.evaluate_every,
        )
    if options.generate and ranks.first:
        show_answers(state.model, options, vocabulary, ranks)
    return report


def build(
    config: ModelConfig,
    vocabulary: Vocabulary,
    kernel: str | Table,
    loader: datapipe.Loader,
    techniques: Techniques,
    ranks: Ranks,
    options: argparse.Namespace,
) -> Run:
    """Make the model with its optimizer, the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = VLM(config, vocabulary.size, vocabulary.image_id, kernel)
        techniques.apply(model)
    model.to(ranks.device)
    return Run(
        model=model,
        loader=loader,
        techniques=techniques,
        optimizer=techniques.make_optimizer(model, rate=options.lr, decay=options.weight_decay),
        scaler=techniques.scaler(ranks.device),
        ranks=ranks,
        peak_rate=options.lr,
        rate_steps=options.lr_steps or options.steps,
        rate_warmup=options.lr_warmup,
    )


def scale_rate(state: Run, options: argparse.Namespace) -> None:
    """Scale the learning rate with the samples of a step, where that was asked for."""
    techniques = state.techniques
    if options.scale_lr is None:
        return
    samples = samples_of_step(
        state.loader.plan.steps(epoch=0),
        count=techniques.accumulate,
        labels=techniques.accumulate_tokens,
        samples=techniques.accumulate_samples,
    )
    state.peak_rate = scaled_rate(
        options.lr, rule=options.scale_lr, samples=samples, base=options.base_batch
    )
    if state.ranks.first:
        print(
            f"{samples:,.1f} samples a step: highest learning rate {state.peak_rate:.3g}",
            file=sys.stderr,
        )


def evaluation(
    state: Run, options: argparse.Namespace, vocabulary: Vocabulary
) -> Callable[[], Evaluation]:
    """Return the function that evaluates a run's model on the held-out dataset, and prints it."""
    held_out = argparse.Namespace(**vars(options) | {"shards": options.evaluate} | NO_CACHE)
    loader = make_loader(
        held_out, state.model.config, vocabulary, state.ranks, epochs=1, shuffle=False
    )

    def run() -> Evaluation:
        loader.set_epoch(0)
        autocast = state.techniques.autocast(state.ranks.device)
        found = evaluate(state.model, loader, state.ranks, step=state.step, autocast=autocast)
        if state.ranks.first:
            print(
                f"step {found.step:5d}  held-out loss {found.loss:.4f} of {found.labels:,} labels",
                file=sys.stderr,
            )
        return found

    return run


def show_answers(
    model: VLM, options: argparse.Namespace, vocabulary: Vocabulary, ranks: Ranks
) -> None:
    """Print the model's answers to the first samples, of the held-out dataset where there is one."""
    rows = {"pack": None, "buckets": None, "static_shapes": False, "batch_size": options.generate}
    longest = options.max_length or options.pack
    changed = {"shards": options.evaluate or options.shards, "max_length": longest}
    one_by_one = argparse.Namespace(**vars(options) | rows | changed | NO_CACHE)
    loader = make_loader(
        one_by_one, model.config, vocabulary, ranks, epochs=1, shuffle=False, rank=0, world_size=1
    )
    with closing(loader), techniques_of(options).autocast(ranks.device):
        answers = write_samples(
            model,
            loader,
            vocabulary,
            count=options.generate,
            max_new_tokens=options.new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
    print(*answers, sep="\n", file=sys.stderr)


def make_loader(
    options: argparse.Namespace,
    config: ModelConfig,
    vocabulary: Vocabulary,
    ranks: Ranks,
    **more: Any,
) -> datapipe.Loader:
    """Batches on the device, without end unless `more` options of the loader say otherwise.

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
            options.pack, max_images=options.max_images, static_shapes=options.static_shapes
        )
    sizes = {"batch_size": options.batch_size, "buckets": options.buckets}
    if options.pack is None and options.batch_size is None:
        sizes["batch_size"] = 8
    # With a device the loader brings batches there ahead of the loop.
    device = ranks.device if ranks.device.type == "cuda" and options.ahead else None
    cache = None
    if options.cache or options.device_cache:
        cache = CacheSpec(memory=options.cache, device=options.device_cache)
    return datapipe.make_loader(
        options.shards,
        image=image,
        text=text,
        pack=pack,
        **sizes,
        seed=options.seed,
        meta=("key", "num_items_in_batch"),
        device=ranks.device if options.device_cache else device,
        cache=cache,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch,
        on_error=options.on_error,
        **{"epochs": None} | more,
    )


def kernel_for(
    name: str, techniques: Techniques, device: torch.device, tables: list[Path] | None = None
) -> str | Table:
    """Return the kernel of attention that was asked for, or the fastest one, or a table of them.

    Raises:
        ValueError: it cannot train here.
    """
    dropout = techniques.dropout > 0
    if tables and name != AUTO:
        raise ValueError(f"--attention {name} takes no --attention-table; leave one of them out")
    if tables:
        return choose_by(Table.read(tables), device, techniques.dtype, dropout)
    if name == AUTO:
        return choose(device, techniques.dtype, dropout)
    if reason := why_not(name, device.type, techniques.dtype, dropout):
        raise ValueError(f"attention {name!r}: {reason}")
    return name


def techniques_of(options: argparse.Namespace) -> Techniques:
    """Return the switches that are on."""
    chosen = {field.name: getattr(options, field.name) for field in fields(Techniques)}
    if options.accumulate == "auto":
        chosen["accumulate"] = 1  # until it is measured
    return Techniques(**chosen)


def log_line(line: Line) -> None:
    """One line for the terminal."""
    text = f"step {line.step:5d}  loss {fmean(line.loss):.3f}"
    if line.tokens_per_s:  # not in the warm-up
        text += f"  {line.tokens_per_s:8,.0f} tokens/s  waiting {line.wait_share:.1%}"
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
