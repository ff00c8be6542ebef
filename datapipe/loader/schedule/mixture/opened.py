"""A mixture that was opened: its datasets, and the samples of a run over them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from datapipe.errors import IndexMismatch, PlanError, StoreError
from datapipe.index.dataset import Dataset, DatasetMixture, open_dataset
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.manifest import MANIFEST, Arrays, parse_manifest
from datapipe.index.mixture import ColumnCounts, DatasetPart
from datapipe.index.tar.listing import is_remote_folder
from datapipe.loader.schedule.image_token_counts import has_frames
from datapipe.loader.schedule.mixture.part import MixtureNotes, MixturePart
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.origin import Leg, Legs, Origin, PartState
from datapipe.loader.schedule.sample_source import select_samples, text_rule
from datapipe.mixture.resolve import resolve
from datapipe.mixture.spec import Mixture, MixtureDataset
from datapipe.plan.options import PlanOptions
from datapipe.progress import Progress
from datapipe.quantities import Amount
from datapipe.remote.folder import RemoteFolder, RemoteOptions
from datapipe.store.open import check_arrays_are_here
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.spec import ImageSpec
    from datapipe.decode.transform import ImageTransform

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

_AT_ONCE = 16  # datasets that are opened together


class OpenedMixture:
    """Mixture whose datasets exist. Of several, those opened before are opened when needed.

    `image` is that of datasets without their own. `IndexMismatch` if one is no finished dataset,
    `PlanError` if it is arrays behind a URL.
    """

    def __init__(
        self, mixture: Mixture, remote: RemoteOptions, image: ImageSpec | None = None
    ) -> None:
        self._mixture, datasets = mixture, mixture.datasets
        self._remote, self._image = remote, image
        if mixture.is_alone:
            self._notes = MixtureNotes(())
            self.dataset = _open(datasets[0], remote, _max_frames(datasets[0], image), 1)
            return
        self._notes = MixtureNotes([fspath(entry.path) for entry in datasets])
        with ThreadPoolExecutor(_AT_ONCE, "datapipe-mixture") as pool:
            parts = list(pool.map(self._open_part, datasets))
        self._notes.save()
        self.dataset = DatasetMixture.of(parts)

    def _open_part(self, entry: MixtureDataset) -> DatasetPart:
        path = fspath(entry.path)
        max_frames = _max_frames(entry, self._image)
        open_it = partial(_open, entry, self._remote, max_frames)
        dataset = None
        with _named(entry):
            seen = _seen(path, self._remote)
        if seen is None:
            dataset = open_it(1)
            seen = dataset.fingerprint
        asked = ("dataset", path, seen, *([] if max_frames is None else [max_frames]))
        note = self._notes.get(*asked)
        if note is None:
            dataset = dataset or open_it(1)
            counts = vars(ColumnCounts.of(dataset.columns))
            note = {"counts": {**counts, "shard_samples": counts["shard_samples"].tolist()}}
            note["fingerprint"] = dataset.fingerprint
            if dataset.manifest.arrays is not None:
                note["arrays"] = asdict(dataset.manifest.arrays)
            self._notes.put(note, *asked)
        counts = {**note["counts"], "extensions": tuple(note["counts"]["extensions"])}
        counts["shard_samples"] = np.array(counts["shard_samples"], np.int64)
        return DatasetPart(
            name=entry.name,
            open_it=open_it,
            counts=ColumnCounts(**counts),
            fingerprint=note["fingerprint"],
            of=len(self._mixture.datasets),
            is_remote=is_remote_folder(path),
            arrays=Arrays(**note["arrays"]) if "arrays" in note else None,
            max_frames=max_frames,
        )

    def origin(
        self,
        text: TextSpec | None,
        where: str | None,
        plan: PlanOptions,
        options: LoaderOptions,
        image: Callable[[ImageSpec | None], ImageTransform | None],
    ) -> Origin:
        """Return the samples of a run; warn of those that teach nothing.

        `where` holds for all datasets, `text` for those that have none of their own. `image`
        returns the transform of a dataset's own `ImageSpec`, for None that of the rest. `PlanError`
        names the dataset.
        """
        make_encoder, image = _once(TextEncoder), _once(image)
        groups, parts = self._mixture.groups, list[MixturePart]()

        def opened(entry: MixtureDataset, data: DatasetPart) -> MixturePart:
            own, transform = text if entry.text is None else entry.text, image(entry.image)
            condition = where if entry.where is None else entry.where
            if where is not None and entry.where is not None:
                condition = f"({where}) and ({entry.where})"
            on_error, rule = options.on_error, None
            described: list[object] = [condition, on_error, plan.max_images, plan.max_patches]
            described += [] if data.max_frames is None else [data.max_frames]
            # Without frames, tokens and states are those of before there were videos.
            apart = has_frames(data.counts.extensions) and (own is None or own.video_markup)
            if transform is not None and not apart:
                transform = transform.without_videos()
            if own is not None:
                rule = text_rule(
                    own,
                    plan,
                    pad_to=options.batch.pad_to,
                    image=transform,
                    make_encoder=make_encoder,
                )
                described += [rule.identity, own.overlong]
            return MixturePart(
                entry,
                data,
                rule,
                partial(select_samples, text=rule, plan=plan, where=condition, on_error=on_error),
                groups=groups[entry.name],
                image=transform,
                described=described,
                notes=self._notes,
            )

        datasets = self.dataset.parts
        bar = Progress("opening", unit="dataset", total=len(datasets))
        several = len(datasets) > 1  # of one, the counting of tokens shows its own progress
        with bar if several else nullcontext():
            for entry, data in zip(self._mixture.datasets, datasets, strict=True):
                with _named(entry):
                    parts.append(opened(entry, data))
                if several:
                    bar.advance()
        for warning in (warning for part in parts for warning in part.warnings):
            logger.warning("%s", warning)
        share = options.run.global_batch_size or options.share
        step = Amount(share * (plan.batch_size or 1), "samples")
        if (tokens := plan.pack or plan.max_tokens) is not None:
            step = Amount(share * tokens, "tokens")  # an estimate, as units are not full
        return self._resolved(parts, plan, step)

    def _resolved(self, parts: Sequence[MixturePart], plan: PlanOptions, step: Amount) -> Origin:
        mixture, tokens = self._mixture, None
        if _needs_tokens(mixture) and any(part.rule is not None for part in parts):
            tokens = np.array([part.mean_tokens() for part in parts])
        sizes = np.array([part.samples for part in parts], np.int64)
        resolved = resolve(mixture, sizes, tokens, step)
        self._notes.save()
        for part in parts:
            # Those that lie elsewhere are opened when their first sample comes near.
            if not part.data.is_remote:
                part.selection()
        leg = Leg(
            start=0,
            rates=resolved.rates,
            epoch=resolved.epoch,
            parts={part.name: PartState.of(part) for part in parts},
        )
        given = json.dumps(_without_paths(mixture.to_dict()), sort_keys=True)
        digest = hashlib.sha256(given.encode()).hexdigest()[:16]
        legs = Legs(digest=digest, epoch=0, base=0, first=resolved.epoch, legs=(leg,))
        return Origin(parts, self.dataset.sample_edges, legs, plan)


def _once(make: Callable[[S], T]) -> Callable[[S], T]:
    """Return a function that is called once for equal arguments, which need not be hashable."""
    found: list[tuple[S, T]] = []

    def call(spec: S) -> T:
        for known, made in found:
            if known is spec or known == spec:
                return made
        found.append((spec, make(spec)))
        return found[-1][1]

    return call


def _max_frames(entry: MixtureDataset, image: ImageSpec | None) -> int | None:
    spec = image if entry.image is None else entry.image
    return None if spec is None else spec.max_frames


def _seen(path: str, remote: RemoteOptions) -> object:
    """Return what changes with the content of a dataset; None if it has to be opened for that."""
    if is_remote_folder(path):
        folder = RemoteFolder(path, remote)
        return parse_manifest(folder.read(MANIFEST), folder.url_of(MANIFEST)).fingerprint
    try:
        found = (Path(path) / MANIFEST).stat()
    except OSError:
        return None
    return [str(Path(path).absolute()), found.st_size, found.st_mtime_ns]


def _open(entry: MixtureDataset, remote: RemoteOptions, max_frames: int | None, of: int) -> Dataset:
    path = fspath(entry.path)
    is_folder = is_remote_folder(path)
    with _named(entry), as_one_of(of):
        dataset = open_dataset(RemoteFolder(path, remote) if is_folder else path)
        check_arrays_are_here(dataset)
        return dataset.with_frames(max_frames)


@contextmanager
def _named(entry: MixtureDataset) -> Iterator[None]:
    """Name the dataset, and its line in a file, in errors about it."""
    try:
        yield
    except (IndexMismatch, PlanError, StoreError) as error:
        if not entry.prefix:
            raise
        raise type(error)(f"{entry.prefix}{error}") from error


def _needs_tokens(mixture: Mixture) -> bool:
    amounts: list[object] = [mixture.epoch]
    amounts += [amount for change in mixture.schedule for amount in (change.start, change.over)]
    return mixture.weights == "tokens" or any(
        isinstance(amount, Amount) and amount.unit != "samples" for amount in amounts
    )


def _without_paths(given: Any) -> Any:
    """Return a mixture as a dict, but for the places of its datasets, which may move."""
    if isinstance(given, Mapping):
        kept = {name: value for name, value in given.items() if name not in ("path", "validation")}
        return {name: _without_paths(value) for name, value in kept.items()}
    return [_without_paths(each) for each in given] if isinstance(given, list) else given
