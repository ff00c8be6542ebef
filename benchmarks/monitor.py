"""Cost of a monitor to a training loop: the same loop with and without it.

    python -m benchmarks.monitor

The step keeps a processor busy for 10 or 50 ms by the clock, so that the monitor's cost is added to
it. One turn of each loop makes a pair; the cost is the difference. Its median is that of a usual
turn. Its mean, without the 1 % of pairs that differ most either way, also has what happens in some
turns only, such as adding up. The loader returns one batch again and again. In the third line the
step takes no time, which shows the cost by itself.

A step that torch's profiler records is measured separately: a model of some thousand operators in
one thread, in CPU time, compared with the same step unrecorded.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import datapipe
from benchmarks.common import command, headline, machine, parse_args, show, write_json
from datapipe.monitor.recorder import StepRecorder
from datapipe.monitor.session import RECORDED_EVERY

BAR = 0.005  # share of a step that a monitor may cost
_BLOCKS = 20


def main() -> None:
    parser = command("monitor", __doc__)
    add = parser.add_argument
    add("--step", type=float, nargs="+", default=[10.0, 50.0], help="ms (default: 10 50)")
    add("--steps", type=int, default=3000, help="of 10 ms; others take as long (%(default)s)")
    options = parse_args(parser)
    if options.steps < _BLOCKS or min(options.step) <= 0:
        parser.error(f"--steps must be at least {_BLOCKS}, and --step above 0")
    where = machine("datapipe", "torch", cache="not used")
    results = [
        measure("step, transfer", step / 1e3, max(_BLOCKS, round(options.steps * 10 / step)))
        for step in options.step
    ]
    results.append(measure("step, transfer, nothing else", 0.0, 20 * options.steps))
    show(headline(where), results)
    for result in results[:-1]:
        kept = "kept" if result["share"] < BAR else "NOT KEPT"
        print(f"the bar is {BAR:.1%} of a step; at {result['step_ms']:g} ms: {kept}")
    recorded = measure_recorded()
    print(
        f"\na recorded step of {recorded['operators']:,} operators: {recorded['extra_ms']:.0f} ms "
        f"more than its {recorded['step_ms']:.0f} ms of CPU time, one in {RECORDED_EVERY:,}: "
        f"{recorded['share']:.2%} of all steps"
    )
    content = {"bar": BAR, "machine": where, "results": results, "recorded": recorded}
    write_json(options.json, content)


def measure(name: str, step: float, steps: int) -> dict[str, Any]:
    """Measure the cost of a monitor, in pairs of steps with and without it."""
    monitored, bare = mark(datapipe.Monitor(), step), mark(None, step)
    for each in (monitored, bare):
        list(itertools.islice(each, 200))  # warm-up
    pairs = []
    for number in range(steps):
        # Who comes first in a pair changes, for what one leaves in the caches.
        order = (monitored, bare) if number % 2 == 0 else (bare, monitored)
        took = {id(each): next(each) for each in order}
        pairs.append((took[id(monitored)], took[id(bare)]))
    differences = [(own - other) / 1e3 for own, other in pairs]
    size = len(differences) // _BLOCKS
    starts = range(0, len(differences) - size + 1, size)
    blocks = [statistics.median(differences[at : at + size]) for at in starts]
    ends = len(differences) // 200
    mean = statistics.fmean(sorted(differences)[ends : len(differences) - ends])
    usual = statistics.median(other for _, other in pairs) / 1e3
    row = {"name": name, "step_ms": step * 1e3, "steps": steps}
    row |= {"median_us": statistics.median(differences), "low_us": min(blocks)}
    return row | {"high_us": max(blocks), "share": mean / usual, "mean_us": mean}


def measure_recorded(rounds: int = 15) -> dict[str, float]:
    """Measure a step that is recorded by torch's profiler against one that is not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layers = (nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(60))
    model, inputs = nn.Sequential(*layers), torch.randn(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    recorder = StepRecorder()
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds + 4):
        recorded = number % 2 == 1
        before = time.process_time()
        if recorded:
            recorder.begin(turn=number, waited=0.0)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.end(counts=True)
        if number >= 4:
            took[recorded].append(time.process_time() - before)
    torch.set_num_threads(threads)
    operators = sum(operator.calls for operator in recorder.samples[-1].operators)
    step, slow = (statistics.median(took[recorded]) for recorded in (False, True))
    times = {"step_ms": 1e3 * step, "extra_ms": 1e3 * (slow - step)}
    return {"operators": operators, **times, "share": (slow - step) / (RECORDED_EVERY * step)}


def mark(monitor: datapipe.Monitor | None, step: float) -> Iterator[int]:
    """Yield the ns of each turn of a training loop, which stops after it."""
    batches = itertools.repeat({"pixel_values": torch.zeros(1)})
    before = time.perf_counter_ns()
    if monitor is None:
        for given in batches:
            given["pixel_values"].detach()
            _busy(step)
            yield time.perf_counter_ns() - before
            before = time.perf_counter_ns()
    else:
        for given in monitor(batches):
            with monitor.transfer():
                given["pixel_values"].detach()
            with monitor.step():
                _busy(step)
            yield time.perf_counter_ns() - before
            before = time.perf_counter_ns()


def _busy(seconds: float) -> None:
    until = time.perf_counter_ns() + round(seconds * 1e9)
    while time.perf_counter_ns() < until:
        pass


if __name__ == "__main__":
    main()
