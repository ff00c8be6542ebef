"""Tokens of every sample's text, counted once for each tokenizer and template.

Only texts are read, in the order of the shards. Memory is bounded by a shard's counts and a few
chunks of texts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256

import numpy as np

from datapipe.cpus import available_cpus
from datapipe.errors import PlanError, SampleError, WorkerError
from datapipe.index.dataset import Dataset
from datapipe.index.tokens.columns import TokenColumns
from datapipe.index.tokens.counting import (
    PartFiles,
    TextFailure,
    TokenPart,
    join_parts,
    open_or_count,
)
from datapipe.plan.ragged import edges
from datapipe.progress import Progress
from datapipe.store.open import open_store
from datapipe.store.protocol import Store
from datapipe.store.text_reader import TextChunk, TextReader
from datapipe.text.encode import EncodedText, SampleText, TextEncoder
from datapipe.workers.engine import EngineName, EngineSpec, open_pool
from datapipe.workers.processes import ProcessPool
from datapipe.workers.protocol import WorkerPool
from datapipe.workers.threads import ThreadPool

logger = logging.getLogger(__name__)

MANY_SAMPLES = 1 << 16  # samples that take longer than processes take to start
# Encoding holds the interpreter's lock for 0.3 (long texts) to 0.7 (short ones) of its CPU time, so
# threads keep no more than three CPUs busy.
_THREADS = 4
_FEW = 2  # workers that threads serve as well as processes do
_MODULES = ("datapipe.loader.schedule.token_counts",)


def count_tokens(
    dataset: Dataset,
    encoder: TextEncoder,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
) -> TokenColumns:
    """Map the token columns of a dataset, which are counted first if necessary.

    A sample whose text cannot be used (damaged, no UTF-8 or JSON, refused by the encoder) has -1
    tokens and a line in `failures.jsonl`. An interrupted count continues at the shard where it
    stopped. Of several processes that share the folder one counts, the others wait for it.
    `workers` threads read and encode, or processes where there are many samples; None takes as many
    as pay. With the engine "ray", tasks of the cluster at `address` do.
    `PlanError` if the encoder cannot encode this dataset at all, `StoreError` if a shard cannot be
    read, `IndexMismatch` if stored counts are not those that their names say, `WorkerError` if the
    workers cannot be used.
    """
    if workers is not None and workers < 1:
        raise PlanError(f"workers {workers}: at least 1 is needed to count tokens")
    chosen = EngineSpec(engine=engine, address=address)

    def count(parts: PartFiles, missing: list[int]) -> None:
        shards = dataset.manifest.shards
        total = sum(shards[number].samples for number in missing)
        factory = partial(_counter, dataset.opener, encoder)
        done: list[TokenPart] = []
        with (
            closing(open_store(dataset)) as store,
            chosen.cluster(workers) as cluster,
            Progress("counting tokens", unit="sample", total=total) as progress,
        ):
            counter = _TextCounter(dataset, store, encoder)
            here = partial(_pool_here, counter, factory, workers, total)
            chunks = (chunk for number in missing for chunk in counter.reader.chunks(number))
            # A chunk takes a moment; its thread must not outlive the files that it reads.
            with closing(open_pool(cluster, factory, here)) as pool:
                for chunk, part in pool.run(chunks):
                    done.append(part)
                    if chunk.last:
                        parts.write(shards[chunk.shard], join_parts(done))
                        done = []
                    progress.advance(len(part))

    digest = encoder.digest
    if dataset.max_frames is not None:
        digest = sha256(f"{digest} max_frames={dataset.max_frames}".encode()).hexdigest()
    return open_or_count(
        dataset.home, dataset.manifest, digest, image_wrap=encoder.image_wrap, count=count
    )


_Count = Callable[[TextChunk], tuple[TextChunk, TokenPart]]


def _pool_here(
    counter: _TextCounter, factory: Callable[[], _Count], workers: int | None, samples: int
) -> WorkerPool[TextChunk, tuple[TextChunk, TokenPart]]:
    count = workers or available_cpus()
    if count > _FEW and samples >= MANY_SAMPLES:
        try:
            return ProcessPool(factory, count, modules=_MODULES)
        except WorkerError as error:
            logger.info("threads count the tokens: %s", error)
    return ThreadPool(counter.count, workers or min(count, _THREADS), name="datapipe-tokens")


def _counter(opener: Callable[[], Dataset], encoder: TextEncoder) -> _Count:
    """Return the function of a worker in another process; it has one thread of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    dataset = opener()
    return _TextCounter(dataset, open_store(dataset), encoder).count


class _TextCounter:
    def __init__(self, dataset: Dataset, store: Store, encoder: TextEncoder) -> None:
        self._columns = dataset.columns
        self._max_frames = dataset.max_frames
        self.reader = TextReader(dataset, store)
        self._encoder = encoder

    def count(self, chunk: TextChunk) -> tuple[TextChunk, TokenPart]:
        read = self._read(chunk)
        usable = [text for text in read if isinstance(text, SampleText)]
        encoded = iter(self._encoder.encode(usable) if usable else ())
        results: list[EncodedText | None] = []
        failures = []
        for slot, text in enumerate(read):
            result = text if isinstance(text, SampleError) else next(encoded)
            if isinstance(result, SampleError):
                key = self._columns.key(chunk.start + slot)
                failures.append(TextFailure(key, result.reason, result.member))
            results.append(None if isinstance(result, SampleError) else result)
        return chunk, _as_part(results, tuple(failures))

    def _read(self, chunk: TextChunk) -> list[SampleText | SampleError]:
        images = np.diff(self._columns.sample_image[chunk.start : chunk.stop + 1]).tolist()
        return [
            part
            if isinstance(part, SampleError)
            else SampleText(part.caption, part.record, count, self._max_frames)
            for part, count in zip(self.reader.read(chunk), images, strict=True)
        ]


def _as_part(results: Sequence[EncodedText | None], failures: tuple[TextFailure, ...]) -> TokenPart:
    """Return the counts of encoded texts; None is a text that cannot be used.

    Of a preference pair, text tokens are those of its longer answer, and labels those of both.
    """
    texts = [text for text in results if text is not None]
    places = np.array([0 if text is None else len(text.image_at) for text in results], np.int64)
    image_at = np.concatenate([np.zeros(0, np.int32), *(text.image_at for text in texts)])
    answers = list(map(_answers, results))
    rows = [row for both in answers for row in both]
    owner_of_row = np.repeat(np.arange(len(results)), list(map(len, answers)))
    tokens = np.full(len(results), -1, np.int32)
    row_tokens = np.array([-1 if row is None else len(row.tokens) for row in rows], np.int32)
    np.maximum.at(tokens, owner_of_row, row_tokens)
    # All labels in one row. A gap on either side of each text separates the runs.
    gap = np.zeros(1, bool)
    pieces = [gap]
    for row in rows:
        pieces += [gap] if row is None else [row.trained, gap]
    trained = np.concatenate(pieces)
    lengths = np.maximum(row_tokens, 0)
    begins = 1 + edges(lengths + 1)[:-1]
    starts = np.flatnonzero(trained[1:] & ~trained[:-1]) + 1
    stops = np.flatnonzero(~trained[1:] & trained[:-1]) + 1
    runs = np.searchsorted(begins, starts, side="right") - 1
    before = edges(trained)
    labels = before[begins + lengths] - before[begins]
    # A first token is predicted only if an image is in front of it.
    led = np.zeros(len(results), bool)
    led[places > 0] = image_at[edges(places)[:-1][places > 0]] == 0
    labels -= trained[begins] & ~led[owner_of_row]
    label_tokens = np.zeros(len(results), np.int32)
    np.add.at(label_tokens, owner_of_row, labels.astype(np.int32))
    return TokenPart(
        text_tokens=tokens,
        label_tokens=label_tokens,
        places=places,
        image_at=image_at,
        spans=np.bincount(owner_of_row[runs], minlength=len(results)).astype(np.int64),
        label_start=(starts - begins[runs]).astype(np.int32),
        label_stop=(stops - begins[runs]).astype(np.int32),
        failures=failures,
    )


def _answers(text: EncodedText | None) -> tuple[EncodedText | None, ...]:
    return (text,) if text is None or text.rejected is None else (text, text.rejected)
