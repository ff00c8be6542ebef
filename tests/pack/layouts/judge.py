"""Comparison of what became of a layout with what should have."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import chdir, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from datapipe import ImageSpec, make_loader, pack_dataset
from datapipe.errors import DatapipeError
from datapipe.pack.report import PackReport
from datapipe.text.messages import RenderedTurn, SampleText, is_pair, read_pair_turns, read_turns
from datapipe.text.preference import ANSWERS

from .pictures import number_of
from .raw import Held, Raw
from .table import Fate, Layout, Refused, Sample

_SPACES = re.compile(r"\s*<image>\s*")
_INTEGER = re.compile(r"\d[\d,]*")
_LEFT_OUT = re.compile(r"left out|no sample has|not (packed|taken|used|read)")
_FORMATS = re.compile(r"the formats are\n(?:  --format .*(?:\n|$))+")
"""List of all formats, in which any word may stand."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of packing a layout: the message of its refusal, or all else.

    Attributes:
        samples: as training sees them.
        lines: notes and warnings of the report.
        rejects: lines of `rejects.jsonl`.
    """

    error: str = ""
    report: PackReport | None = None
    samples: tuple[Sample, ...] = ()
    lines: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()


def faults_of(layout: Layout, folder: Path) -> list[str]:
    """Write a layout, pack it, and return what is wrong with the result."""
    raw = Raw(folder=folder / "raw")
    fate = layout.make(raw)
    fates = fate if isinstance(fate, tuple) else (fate,)
    faults = []
    if layout.options:
        outcome = _pack(raw, folder / "plain", {})
        said = outcome.error or "\n".join(outcome.report.teaching.warnings())
        options = [f"--{name.replace('_', '-')}" for name in layout.options]
        if not all(option in said for option in options):
            faults = [f"without {options}: {fault}" for fault in _judge(outcome, raw, fates)]
    return faults + _judge(_pack(raw, folder / "out", layout.options), raw, fates)


def _pack(raw: Raw, out: Path, options: dict[str, Any]) -> Outcome:
    try:
        with chdir(raw.cwd or "."):
            report = pack_dataset(raw.given, out, workers=1, max_rejects=10**6, **options)
    except DatapipeError as error:
        assert not (out / "dataset.json").exists()
        return Outcome(error=str(error))
    return Outcome(
        report=report,
        samples=tuple(_seen(out)),
        lines=(*report.notes, *report.teaching.warnings()),
        rejects=tuple((out / "rejects.jsonl").read_text("utf-8").splitlines()),
    )


def _judge(outcome: Outcome, raw: Raw, fates: Iterable[Fate]) -> list[str]:
    """Return what is wrong: with any packed data, and measured by the fate that fits best."""
    always = list(_always(outcome, raw)) if outcome.report else []
    return always + min((_measured(outcome, fate) for fate in fates), key=len)


# --- what training sees -----------------------------------------------------------------------


def _seen(out: Path) -> Iterator[Sample]:
    """Yield the samples: images as a loader decodes them, turns as its templates get them."""
    members: dict[str, bytes] = {}
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            members |= {info.name: tar.extractfile(info).read() for info in tar}
    spec = ImageSpec(size=4, dtype=torch.uint8)
    with closing(
        make_loader(out, image=spec, batch_size=64, shuffle=False, num_workers=0)
    ) as loader:
        for batch in loader:
            pixels = iter(batch["pixel_values"][:, :, 1, 1].numpy())
            for slot, key in enumerate(batch["key"]):
                if not batch["valid"][slot]:
                    continue
                count = int(batch["images_per_sample"][slot])
                images = tuple(number_of(next(pixels)) for _ in range(count))
                caption = members[f"{key}.txt"].decode() if f"{key}.txt" in members else None
                record = json.loads(members.get(f"{key}.json", "null"))
                yield Sample(images, _turns(SampleText(caption, record, count)))


def _turns(sample: SampleText) -> tuple[tuple[str, str], ...]:
    """Return the turns, those without anything to learn marked."""
    turns = []
    for turn in _read(sample):
        text = "".join("<image>" if piece is None else piece for piece in turn.pieces)
        text = _SPACES.sub("<image>", text).strip()
        is_learnt = turn.role in ("assistant", *ANSWERS) and bool(text.replace("<image>", ""))
        mark = "" if turn.trained == is_learnt else " (not learnt)"
        turns.append((turn.role + mark, text))
    if not any(text.replace("<image>", "") for _, text in turns):
        return ()
    return tuple(turns)


def _read(sample: SampleText) -> list[RenderedTurn]:
    """Return the turns of a sample; of a preference pair the answers are called by their kind."""
    if not is_pair(sample):
        return read_turns(sample, system=None, newline=False)
    both = read_pair_turns(sample, system=None, newline=False)
    answers = zip(ANSWERS, both, strict=True)
    said = [turn._replace(role=name) for name, turns in answers for turn in turns if turn.trained]
    return [turn for turn in both[0] if not turn.trained] + said


def _is(seen: Sample, expected: Sample) -> bool:
    if seen.images != expected.images or len(seen.turns) != len(expected.turns):
        return False
    for (role, text), (meant, words) in zip(seen.turns, expected.turns, strict=True):
        is_marked = isinstance(words, str) and "<image>" in words
        text = text if is_marked else text.replace("<image>", "").strip()
        if role != meant or words != text:
            return False
    return True


# --- faults -----------------------------------------------------------------------------------


def _measured(outcome: Outcome, fate: Fate) -> list[str]:
    """Return what differs from a fate."""
    if isinstance(fate, Refused):
        said = _FORMATS.sub("", outcome.error)
        if not outcome.samples:
            said += "\n".join(outcome.rejects)
        if not said:
            return [f"packed {len(outcome.samples)} samples: {outcome.samples[:2]}"]
        missing = [w for w in fate.says if not re.search(w, said, re.IGNORECASE | re.DOTALL)]
        return [f"the refusal does not say {word!r}: {said}" for word in missing]
    if outcome.error:
        return [f"refused: {outcome.error}"]
    faults = list(_differences(outcome.samples, fate.samples))
    if len(outcome.rejects) != fate.rejects:
        faults.append(f"{len(outcome.rejects)} rejects, not {fate.rejects}: {outcome.rejects[:2]}")
    for said in fate.says:
        word, count = (said, None) if isinstance(said, str) else said
        if not _is_said(outcome, word, count):
            number = "" if count is None else f" with the number {count}"
            faults.append(f"no line says {word!r}{number}: {outcome.lines}")
    return faults


def _differences(seen: tuple[Sample, ...], expected: tuple[Sample, ...]) -> Iterator[str]:
    left = list(seen)
    missing = []
    for sample in expected:
        found = next((other for other in left if _is(other, sample)), None)
        if found is None:
            missing.append(sample)
        else:
            left.remove(found)
    if missing:
        yield f"{len(missing)} samples are missing: {missing[0]}"
    if left:
        yield f"{len(left)} samples are others: {left[0]}"


def _is_said(outcome: Outcome, word: str, count: int | None) -> bool:
    """Return whether the report says something, with its number, or as many rejects do."""
    pattern = re.compile(word, re.IGNORECASE)
    lines = [line for line in outcome.lines if pattern.search(line)]
    if count is None:
        return bool(lines) or any(map(pattern.search, outcome.rejects))
    rejects = sum(bool(pattern.search(line)) for line in outcome.rejects)
    return rejects >= count or any(count in _integers(line) for line in lines)


def _integers(line: str) -> list[int]:
    return [int(number.replace(",", "")) for number in _INTEGER.findall(line)]


def _always(outcome: Outcome, raw: Raw) -> Iterator[str]:
    """Yield what must never be, whatever the layout is."""
    report = outcome.report
    assert report is not None
    if len({report.inputs - report.samples, report.rejected, len(outcome.rejects)}) > 1:
        yield f"{report.inputs} inputs, {report.samples} samples, {report.rejected} rejects"
    if report.samples != len(outcome.samples):
        yield f"{report.samples} samples, and a loader shows {len(outcome.samples)}"
    silent = sum(not sample.turns for sample in outcome.samples)
    if silent and not any("text" in line for line in outcome.lines):
        yield f"{silent} samples have no text, and no warning says so"
    yield from _lost(outcome, raw.held)
    shown = {number for sample in outcome.samples for number in sample.images}
    names = [item.names[0] for item in raw.held if item.number in shown and item.names]
    for line in outcome.lines:
        if _LEFT_OUT.search(line) and _has(line, names):
            yield f"packed, and said to be left out: {line}"


def _lost(outcome: Outcome, held: list[Held]) -> Iterator[str]:
    """Yield the images and media that are in no sample and that no line tells of."""
    shown = {number for sample in outcome.samples for number in sample.images}
    missing: dict[str, list[Held]] = {}
    for item in held:
        if item.number is None or item.number not in shown:
            missing.setdefault(item.group, []).append(item)
    lines = (*outcome.lines, *outcome.rejects)
    for group, items in missing.items():
        unnamed = [item for item in items if not any(_has(line, item.names) for line in lines)]
        names = [name for item in items for name in item.names]
        told = any(
            max(_integers(line), default=0) >= len(unnamed)
            and (_has(line, names) or _has(line, [group]))
            for line in outcome.lines
        )
        if unnamed and not told:
            yield f"lost without a word: {len(unnamed)} of {group!r} {unnamed[0].names}"


def _has(line: str, names: Iterable[str]) -> bool:
    """Return whether a line has one of some names, as a whole."""
    return any(name and re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", line) for name in names)
