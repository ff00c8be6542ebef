"""Token counts of made-up datasets."""

import hashlib

import numpy as np

from datapipe.index.manifest import Manifest, Shard
from datapipe.index.tokens.columns import DTYPES, TokenColumns
from datapipe.index.tokens.counting import TextFailure, TokenPart, join_parts, open_or_count

DIGEST = "0123456789abcdef" * 4
OTHER = "f" * 64


def make_part(seed: int, samples: int) -> TokenPart:
    """Counts that depend on `seed` alone; about every third sample failed."""
    rng = np.random.default_rng(seed)
    usable = rng.random(samples) > 0.3
    places = rng.integers(0, 3, samples) * usable
    spans = rng.integers(0, 4, samples) * usable
    starts = rng.integers(0, 50, spans.sum()).astype(np.int32)
    return TokenPart(
        text_tokens=np.where(usable, rng.integers(0, 90, samples), -1).astype(np.int32),
        label_tokens=(rng.integers(0, 90, samples) * usable).astype(np.int32),
        places=places,
        image_at=rng.integers(0, 90, places.sum()).astype(np.int32),
        spans=spans,
        label_start=starts,
        label_stop=starts + np.int32(2),
        failures=tuple(
            TextFailure(f"{seed}-{sample}", "no text", "x.txt" * (sample % 2))
            for sample in np.flatnonzero(~usable)
        ),
    )


def make_manifest(sizes, *, salt=""):
    shards = [
        Shard(
            name=f"{number}.tar",
            index=f"{number}.parquet",
            samples=size,
            images=0,
            bytes=1024,
            index_sha256=hashlib.sha256(f"{salt}{number}".encode()).hexdigest(),
        )
        for number, size in enumerate(sizes)
    ]
    return Manifest(shards=tuple(shards))


MANIFEST = make_manifest([5, 1, 0, 7])
"""Four shards; one is empty."""


def count_shards(parts, missing, manifest=MANIFEST, *, stop_at=None):
    """Count shards as `make_part` makes them, up to one where it is interrupted."""
    for number in missing:
        if number == stop_at:
            raise KeyboardInterrupt
        shard = manifest.shards[number]
        parts.write(shard, make_part(number, shard.samples))


def count(home, manifest=MANIFEST, *, digest=DIGEST, stop_at=None):
    """The columns, and which shards had to be counted."""
    asked = []

    def counted(parts, missing):
        asked.extend(missing)
        count_shards(parts, missing, manifest, stop_at=stop_at)

    return open_or_count(home, manifest, digest, image_wrap=(1, 2), count=counted), asked


def whole(manifest=MANIFEST):
    return join_parts(
        [make_part(number, shard.samples) for number, shard in enumerate(manifest.shards)]
    )


def assert_holds(columns: TokenColumns, expected: TokenPart) -> None:
    for name in DTYPES.keys() & vars(expected).keys():
        assert getattr(columns, name).tolist() == getattr(expected, name).tolist(), name
    assert np.diff(columns.sample_image_at).tolist() == expected.places.tolist()
    assert np.diff(columns.sample_label).tolist() == expected.spans.tolist()
    assert columns.sample_image_at[0] == columns.sample_label[0] == 0
    failures = [(f.key, f.reason, f.member) for f in expected.failures]
    found = [(f["key"], f["reason"], f.get("member", "")) for f in columns.failures()]
    assert found == failures
    assert columns.failed == len(failures)
