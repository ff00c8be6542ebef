"""Train the reference model on a packed dataset.

    datapipe pack RAW SHARDS
    python -m examples.vlm.train SHARDS --model tiny --steps 50 --pack 2048

Ctrl-C ends after the current step; with --save nothing is lost. Several GPUs: torchrun
--nproc-per-node 8 -m examples.vlm.train SHARDS ... There Ctrl-C ends at once; use --save-every.
See docs/distributed.md.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import FrameType

import torch

import datapipe
from examples.vlm.checkpoint import check_path, load, save
from examples.vlm.data.batches import samples_of_step
from examples.vlm.data.loaders import make_loader, make_resident, ordered_loader
from examples.vlm.data.resident import Resident
from examples.vlm.data.texts import Vocabulary
from examples.vlm.evaluate import evaluate_and_print
from examples.vlm.loop import Run, train
from examples.vlm.measure.by_dataset import dataset_table
from examples.vlm.measure.find_batch import find_batch_size
from examples.vlm.measure.memory import Phases, bytes_of, table_of
from examples.vlm.measure.profiling import Profiling, profiled
from examples.vlm.measure.report import Report, with_costs
from examples.vlm.model.attention import AUTO, Table, choose, choose_by, why_not
from examples.vlm.model.config import MODELS
from examples.vlm.model.sampling import print_answers
from examples.vlm.model.vlm import VLM
from examples.vlm.options import in_options, parse
from examples.vlm.parallel.connect import connect, parallel_of
from examples.vlm.parallel.exchange import accumulate_automatically
from examples.vlm.parallel.mesh import distribute, join_mesh
from examples.vlm.parallel.ranks import TIMEOUT, Ranks, joined
from examples.vlm.parallel.watch import Watch, watched
from examples.vlm.techniques import Techniques, check_compiler, scaled_rate


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments, __doc__)
    limit = options.rank_timeout or TIMEOUT
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        with joined(options.device, limit) as ranks, watched(ranks, limit) as watch:
            if options.find_batch_size is not None:
                find_size(options, ranks)
                return
            report = run(options, ranks, watch)
            if ranks.first:
                show(report, options)
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        rank = f"rank {os.environ['RANK']}: " if several else ""
        sys.exit(f"train: {rank}{in_options(str(error))}")
    except KeyboardInterrupt:
        if not several:
            raise
        wrote = "; --resume continues from what --save-every wrote" if options.save_every else ""
        sys.exit(f"train: interrupted{wrote}" if os.environ["RANK"] == "0" else 1)


def run(options: argparse.Namespace, ranks: Ranks, watch: Watch | None = None) -> Report:
    """Build model and loader, continue from a checkpoint if there is one, and train."""
    ranks.agree(vars(options))
    ranks = join_mesh(ranks, options)
    torch.manual_seed(options.seed + ranks.rank)
    shapes, stacks = options.profile_shapes, options.profile_stacks
    profiling = Profiling(path=options.profile, shapes=shapes, stacks=stacks, nvtx=options.nvtx)
    vocabulary = Vocabulary.of(options.tokenizer)
    # Loaders end before the ranks do, so that none of their threads is at work at exit.
    with ExitStack() as opened:
        loader = opened.enter_context(make_loader(options, vocabulary, ranks))
        state = prepare(options, vocabulary, loader, ranks)
        if watch is not None:
            state.mark = watch.mark
        held_out = None
        if options.evaluate:
            held_out = ordered_loader(options, vocabulary, ranks, options.evaluate)
            opened.enter_context(held_out)
        report = learn(options, state, held_out, profiling)
    if options.generate and ranks.first:
        shards = options.evaluate or options.shards
        with ordered_loader(options, vocabulary, ranks, shards, samples=options.generate) as few:
            print_answers(state.model, few, vocabulary, options)
    return report


def prepare(
    options: argparse.Namespace, vocabulary: Vocabulary, loader: datapipe.Loader, ranks: Ranks
) -> Run:
    """Build a run, and bring it to where the one of --resume was saved."""
    techniques = techniques_of(options)
    batches = make_resident(options, vocabulary, ranks, loader) if options.resident else loader
    if options.global_batch_size:
        techniques = replace(techniques, accumulate=loader.accumulation_steps)
    keeps = techniques.keeps_gradients or options.accumulate == "auto"
    check_compiler(techniques.compile, ranks.device, keeps_gradients=keeps)
    state = build(options, vocabulary, batches, techniques, ranks)
    if options.save:
        check_path(options.save, sharded=state.exchange.divided)
    if options.accumulate == "auto":
        accumulate_automatically(state)
    if options.scale_lr is not None:
        samples = samples_of_step(state.loader.plan.steps(epoch=0), **state.techniques.group)
        rule, base = options.scale_lr, options.base_batch
        state.peak_rate = scaled_rate(options.lr, rule=rule, samples=samples, base=base)
        ranks.say(f"{samples:,.1f} samples a step: highest learning rate {state.peak_rate:.3g}")
    if options.resume:
        load(options.resume, state)
        if options.hook == "powersgd":
            ranks.say("PowerSGD starts again: it sends whole gradients, and forgets its errors")
    sizes = {p: p.numel() for p in state.model.parameters()}
    learning = sum(size for p, size in sizes.items() if p.requires_grad)
    whole, kernel = sum(sizes.values()), state.model.kernel
    ranks.say(f"{learning:,} of {whole:,} parameters learn; attention: {kernel}")
    return state


def learn(
    options: argparse.Namespace, state: Run, held_out: datapipe.Loader | None, profiling: Profiling
) -> Report:
    ranks = state.ranks
    # Ranks that stopped after different steps would wait for each other for ever.
    alone = ranks.world_size == 1
    phases = None
    if options.memory_phases:
        phases = Phases(state.model, state.optimizer, ranks.device)
    with (
        interruptible(alone) as interrupted,
        closing(phases) if phases else nullcontext(),
        profiled(profiling, state.model) if ranks.first else nullcontext(),
    ):

        def after_step() -> bool:
            profiling.step()
            due = options.save_every and state.step % options.save_every == 0
            last = interrupted() or state.step == options.steps
            if options.save and (due or last):
                state.mark("saving a checkpoint", state.step)
                save(options.save, state, sharded=state.exchange.divided)
            return not interrupted()

        report = train(
            state,
            steps=options.steps,
            warm_up=options.warm_up,
            log_every=options.log_every,
            after_step=after_step,
            evaluate=None if held_out is None else partial(evaluate_and_print, state, held_out),
            evaluate_every=options.evaluate_every,
            peak_flops=options.peak_flops,
        )
    return with_costs(report, phases, profiling.stages)


@contextmanager
def interruptible(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, to end a run after its step.

    Twice interrupts at once. If not `wanted`, or outside of the main thread, which alone gets
    signals, Ctrl-C acts as usual.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        pressed.set()
        print("stopping after this step; Ctrl-C again to stop at once", file=sys.stderr)

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def find_size(options: argparse.Namespace, ranks: Ranks) -> int:
    """Print and return the largest batch that fits, see `find_batch`."""
    vocabulary, packed = Vocabulary.of(options.tokenizer), options.pack is not None
    if packed and (options.batch_size or 1) > 1:
        raise ValueError("--find-batch-size with --pack finds the tokens of one pack a step")

    def loader_of(size: int) -> datapipe.Loader:
        name = "pack" if packed else "batch_size"
        sized = {**vars(options), name: size, "global_batch_size": None}
        return make_loader(argparse.Namespace(**sized), vocabulary, ranks)

    start, techniques = options.pack or options.batch_size or 8, techniques_of(options)
    if options.global_batch_size or options.accumulate == "auto":
        techniques = replace(techniques, accumulate=2)  # as the run may have to
    state = build(options, vocabulary, loader_of(start), techniques, ranks)
    limit = bytes_of(options.find_batch_size) if options.find_batch_size else None
    return find_batch_size(
        state, loader_of, start, packed=packed, native=options.native, limit=limit
    )


def build(
    options: argparse.Namespace,
    vocabulary: Vocabulary,
    loader: datapipe.Loader | Resident,
    techniques: Techniques,
    ranks: Ranks,
) -> Run:
    """Make the model with its optimizer, the same on every rank."""
    kernel = kernel_for(options, techniques, ranks.device)
    parallel = parallel_of(options, techniques, ranks)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = VLM(MODELS[options.model], vocabulary.size, vocabulary.image_id, kernel)
        techniques.apply(model)
    model.to(ranks.device)
    if ranks.mesh is not None:
        distribute(model, ranks.mesh)
    tokens = (options.pack or 0) * (options.batch_size or 1)
    exchange = connect(model, parallel, techniques, ranks, tokens=tokens)
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
        about={
            "model": options.model,
            "vocabulary": vocabulary.size,
            "lora": options.lora,
            "states of the optimizer in bits": 8 if options.optimizer == "8bit" else 32,
        },
    )


def kernel_for(
    options: argparse.Namespace, techniques: Techniques, device: torch.device
) -> str | Table:
    """Return the kernel of attention that was asked for, the fastest one, or a table of them."""
    name: str = options.attention
    dropout, tables = techniques.dropout > 0, options.attention_table
    if name == AUTO and tables:
        return choose_by(Table.read(tables), device, techniques.dtype, dropout)
    if name == AUTO:
        return choose(device, techniques.dtype, dropout)
    if tables:
        raise ValueError(f"--attention {name} takes no --attention-table; leave one of them out")
    if reason := why_not(name, device.type, techniques.dtype, dropout):
        raise ValueError(f"attention {name!r}: {reason}")
    return name


def techniques_of(options: argparse.Namespace) -> Techniques:
    chosen = {field.name: getattr(options, field.name) for field in fields(Techniques)}
    if options.accumulate == "auto":
        chosen["accumulate"] = 1  # until it is measured
    return Techniques(**chosen)


def show(report: Report, options: argparse.Namespace) -> None:
    """Print what was measured, and write it as JSON where that was asked for."""
    memory = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in report.memory.items())
    shares = {"MFU": report.mfu, "HFU": report.hfu}
    known = "".join(f", {name} {share:.1%}" for name, share in shares.items() if share is not None)
    times = "no step was timed: give more --steps"
    if report.step_p50 is not None and report.step_p99 is not None:
        times = f"step {report.step_p50 * 1e3:,.0f} ms, P99 {report.step_p99 * 1e3:,.0f} ms"
    if report.wait_share is not None:
        times += f"; waiting {report.wait_share:.1%}"
    lines = [
        f"{report.steps} steps, loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f}; "
        f"{report.samples_per_s:,.1f} samples/s, {report.tokens_per_s:,.0f} tokens/s "
        f"({report.fill:.1%} of what was computed); {times}; "
        f"{report.flops_per_s / 1e9:,.1f} GFLOP/s{known}",
        f"memory: {memory}",
    ]
    if report.memory_phases:
        lines.append(table_of(report.memory_phases))
    if report.datasets:
        lines.append(dataset_table(report.datasets))
    print(*lines, report.verdict, sep="\n", file=sys.stderr if options.json == "-" else sys.stdout)
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
