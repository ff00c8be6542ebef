"""Fill and speed of the plan's packs, and the balance of its ranks.

Lengths are drawn to be like those of vision-language data: text of 10 to 8,000 tokens, two thirds
short captions and one third long documents, both log-normal, with 0 to 8 images of 64, 144, 256 or
576 tokens each (in `mixed` each sample draws its own). Samples longer than the capacity are left
out. `hard` lengths are there to show the limits: see `HARD`.

Fill is the share of all packs' tokens that samples use. Imbalance is (max - mean) / max over the
ranks of a step, averaged over steps of one pack a rank.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import Row, command, headline, machine, parse_args, show, write_json
from datapipe.array_types import Int64
from datapipe.plan.groups import lay_out, text_cost
from datapipe.plan.options import BLOCK
from datapipe.plan.packing import pack_lengths, pack_units
from datapipe.plan.packing_kernel import UNLIMITED
from datapipe.plan.packing_kernel import pack as compiled_pack
from datapipe.plan.ragged import edges

CAPACITIES = (4096, 8192, 16384)
IMAGE_TOKENS = ("64", "144", "256", "576", "mixed")

HARD: dict[str, Callable[[np.random.Generator, int, int], npt.NDArray[Any]]] = {
    # About as many samples above half of the capacity as packs: each pack needs one of them, and
    # the best partner of each is rarely in the window.
    "uniform 1 to capacity": lambda draw, n, c: draw.integers(1, c + 1, n),
    "normal, mean c/2": lambda draw, n, c: draw.normal(0.5 * c, 0.05 * c, n),
    # Three make a pack, if they are well chosen.
    "normal, mean c/3": lambda draw, n, c: draw.normal(c / 3, 0.02 * c, n),
    "uniform c/5 to c/2": lambda draw, n, c: draw.integers(c // 5, c // 2, n),
    # Nothing can be done: one a pack, three a pack.
    "all 0.6 c": lambda draw, n, c: np.full(n, 0.6 * c),
    "all 0.3 c": lambda draw, n, c: np.full(n, 0.3 * c),
    "Pareto, index 1.2": lambda draw, n, c: 10 * (1 + draw.pareto(1.2, n)),
}


def main() -> None:
    parser = command("plan", __doc__)
    add = parser.add_argument
    add("--samples", type=int, default=1_000_000, help="lengths (default: %(default)s)")
    add("--rounds", type=int, default=5, help="of each timing (default: %(default)s)")
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections alone")
    options = parse_args(parser)
    where = machine("numpy", "numba", "datapipe", cache="not used")
    print(headline(where))
    content: dict[str, Any] = {"machine": where, "samples": options.samples}
    for name in options.only:
        title = f"{name}: {(SECTIONS[name].__doc__ or '').splitlines()[0]}"
        content[name] = show(title, SECTIONS[name](options.samples, options.rounds))
        write_json(options.json, content)


def fill(samples: int, rounds: int) -> Iterator[Row]:
    """Fill of packs by image tokens and capacity; `over` is packs above the least possible."""
    for tokens in IMAGE_TOKENS:
        for capacity in CAPACITIES:
            lengths, images, _ = vlm_lengths(samples, tokens)
            yield _fill_row(tokens, lengths, capacity, images)


def hard(samples: int, rounds: int) -> Iterator[Row]:
    """Fill of packs of lengths that are made to be hard."""
    for name, make in HARD.items():
        for capacity in CAPACITIES[:2]:
            drawn = make(np.random.default_rng(1), samples // 4, capacity).astype(np.int64)
            lengths = np.maximum(drawn, 1)
            yield _fill_row(name, lengths, capacity, np.zeros_like(lengths))


def _fill_row(name: str, lengths: Int64, capacity: int, images: Int64) -> Row:
    images = images[lengths <= capacity]
    lengths = lengths[lengths <= capacity]
    total = int(lengths.sum())

    def best_fit(size: int) -> int:
        parts = _parts(lengths, size)
        return sum(len(best_fit_decreasing(part, capacity)) for part in parts)

    packs = {
        "next-fit": next_fit(lengths, capacity),
        "BFD/1,024": best_fit(1024),
        "BFD/block": best_fit(BLOCK),
        "BFD, global": best_fit(len(lengths)),
        "datapipe": len(pack_lengths(lengths, capacity, images=images, seed=None)[1]) - 1,
    }
    least = sum(-(-int(part.sum()) // capacity) for part in _parts(lengths, BLOCK))
    return {
        "lengths": name,
        "capacity": capacity,
        "mean length": round(float(lengths.mean())),
        **{who: round(total / (number * capacity), 5) for who, number in packs.items()},
        "packs": packs["datapipe"],
        "over": packs["datapipe"] - least,
        "over BFD/block": packs["datapipe"] - packs["BFD/block"],
        "over BFD, global": packs["datapipe"] - packs["BFD, global"],
    }


def speed(samples: int, rounds: int) -> Iterator[Row]:
    """CPU seconds: `pack_lengths` over all samples; its kernel over one block."""
    for tokens in IMAGE_TOKENS:
        for capacity in CAPACITIES:
            lengths, images, _ = vlm_lengths(samples, tokens)
            images = images[lengths <= capacity]
            lengths = lengths[lengths <= capacity]
            compiled_pack(lengths[:1], images[:1], capacity, 1, UNLIMITED, UNLIMITED)  # loads
            for name, carried in (("no", None), ("similar numbers", images)):
                work = partial(pack_lengths, lengths, capacity, images=carried)
                seconds = sorted(_seconds(work) for _ in range(rounds))
                counts = np.zeros_like(lengths) if carried is None else carried
                arguments = (lengths[:BLOCK], counts[:BLOCK], capacity, 256, UNLIMITED, UNLIMITED)
                kernel = min(_seconds(partial(compiled_pack, *arguments)) for _ in range(rounds))
                yield {
                    "lengths": tokens,
                    "capacity": capacity,
                    "images": name,
                    "samples": len(lengths),
                    "s, median": round(statistics.median(seconds), 3),
                    "s, least": round(seconds[0], 3),
                    "s, most": round(seconds[-1], 3),
                    "kernel, ms a block": round(1000 * kernel, 1),
                }


def start(samples: int, rounds: int) -> Iterator[Row]:
    """Seconds that a fresh process needs for numba and its first pack."""
    code = (
        "import numpy as np, time; from datapipe.plan import packing; began = time.perf_counter();"
        "from datapipe.plan.packing_kernel import pack; one = np.ones(1, np.int64);"
        "pack(one, one, 1, 1, 1, 1); print(time.perf_counter() - began)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        for what in ("compiled for the first time", *["loaded from the cache"] * min(rounds, 3)):
            command = [sys.executable, "-c", code]
            output = subprocess.run(command, env=environment, capture_output=True, check=True)
            yield {"kernel": what, "s": round(float(output.stdout), 2)}


def balance(samples: int, rounds: int) -> Iterator[Row]:
    """Imbalance of work over the ranks, by how packs are laid out; capacity 8,192."""
    for tokens in IMAGE_TOKENS:
        costs = list(_block_costs(samples, tokens, 8192))
        for ranks in (8, 64):
            for name, layout in LAYOUTS.items():
                row = {"images of": tokens, "ranks": ranks, "packs laid out": name}
                yield row | _imbalances(costs, layout, ranks)


Layout = Callable[[Int64, Int64, int, int], Int64]
LAYOUTS: dict[str, Layout] = {
    "round-robin": lambda text, *_: np.arange(len(text), dtype=np.int64),
    "sorted by text": lambda text, *_: np.argsort(text, kind="stable"),
    "groups": lambda text, vision, ranks, before: lay_out(
        text, vision, group=max(64, ranks), phase=before % max(64, ranks), key=before
    ),
}


def _block_costs(samples: int, tokens: str, capacity: int) -> Iterator[tuple[Int64, ...]]:
    """Costs of each block's packs: text, images, image tokens."""
    lengths, images, side = vlm_lengths(samples, tokens)
    vision = images * side
    fits = lengths <= capacity
    for numbers in _parts(np.flatnonzero(fits), BLOCK):
        length, count, cost = lengths[numbers], images[numbers], vision[numbers]
        order, offsets = pack_units(length, capacity, images=count)
        columns = text_cost(length), count, cost
        yield tuple(np.diff(edges(column[order])[offsets]) for column in columns)


def _imbalances(costs: Sequence[tuple[Int64, ...]], layout: Layout, ranks: int) -> Row:
    row: Row = {}
    seconds = []
    # By name: the cost that images are balanced by, and the one that is looked at.
    for name, balanced, shown in (("text", 1, 0), ("images", 1, 1), ("image tokens", 2, 2)):
        before, parts = 0, []
        for block in costs:
            began = time.process_time()
            order = layout(block[0], block[balanced], ranks, before)
            seconds.append(time.process_time() - began)
            parts.append(block[shown][order])
            before += len(order)
        steps = np.concatenate(parts)[: before // ranks * ranks].reshape(-1, ranks)
        most = np.maximum(steps.max(1), 1)
        row[f"{name}, %"] = round(100 * float(((most - steps.mean(1)) / most).mean()), 2)
    row["packs a block"] = round(sum(len(block[0]) for block in costs) / len(costs))
    row["ms a block"] = round(1000 * statistics.median(seconds), 1)
    return row


SECTIONS: dict[str, Callable[[int, int], Iterator[Row]]] = {
    section.__name__: section for section in (fill, hard, speed, start, balance)
}


def vlm_lengths(samples: int, image_tokens: str) -> tuple[Int64, Int64, Int64]:
    """Tokens, images and tokens of one image of each sample."""
    draw = np.random.default_rng(1)
    short = np.exp(draw.normal(np.log(60), 0.7, samples))
    long = np.exp(draw.normal(np.log(900), 0.9, samples))
    text = np.clip(np.where(draw.random(samples) < 0.65, short, long), 10, 8000).astype(np.int64)
    images = draw.choice(9, samples, p=[0.1, 0.62, 0.1, 0.05, 0.05, 0.02, 0.03, 0.01, 0.02])
    sizes = [int(size) for size in IMAGE_TOKENS if size.isdigit()]
    each = draw.choice(sizes if image_tokens == "mixed" else [int(image_tokens)], samples)
    return text + images * each, images.astype(np.int64), each.astype(np.int64)


def next_fit(lengths: Int64, capacity: int) -> int:
    """Packs if samples are taken in turn and a pack is closed when the next does not fit."""
    packs = used = 0
    for length in lengths.tolist():
        if not packs or used + length > capacity:
            packs, used = packs + 1, 0
        used += length
    return packs


def best_fit_decreasing(lengths: Int64, capacity: int) -> list[list[int]]:
    """Return packs of samples: the longest go first, each into the fullest pack with room."""
    waiting: list[list[list[int]]] = [[] for _ in range(capacity + 1)]  # packs by their room
    rooms = 0  # bit r: some pack has room r
    packs: list[list[int]] = []
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        if fitting := rooms >> length:
            room = (fitting & -fitting).bit_length() - 1 + length
            pack = waiting[room].pop()
            if not waiting[room]:
                rooms ^= 1 << room
        else:
            room, pack = capacity, []
            packs.append(pack)
        pack.append(sample)
        waiting[room - length].append(pack)
        rooms |= 1 << (room - length)
    return packs


def _parts(values: Int64, size: int) -> Iterator[Int64]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _seconds(work: Callable[[], object]) -> float:
    """Measure the processor's time, which other programs of the machine do not change."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
