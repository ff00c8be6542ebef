"""Columns of a few samples to ask questions of."""

import numpy as np

from datapipe.index.columns import DTYPES, Columns

ROWS = [  # key, source, sizes of images, bytes of text
    ("000", "coco/train/1.jpg", [(640, 480)], 10),
    ("001", "coco/val/2.jpg", [(336, 336), (20, 10)], 0),
    ("002", "llava.json#7", [], 300),
    ("003", "ocr/ä.png", [(1000, 100)], 4000),
    ("004", "", [(48, 0)], 1),
    ("005", "coco.json", [(335, 700), (9, 9), (5, 5)], 77),
]
TOKENS = np.array([5, 2, 100, 4096, -1, 30], np.int32)
EXTRA = {"text_tokens": lambda span: TOKENS[span]}


def columns_of(rows, shards=()):
    """Columns of these samples, in shards of so many."""

    def offsets(lengths):
        return np.cumsum([0, *lengths], dtype=np.int64)

    def encoded(texts):
        every = [text.encode() for text in texts]
        return offsets(map(len, every)), np.frombuffer(b"".join(every), np.uint8)

    keys, sources = encoded([row[0] for row in rows]), encoded([row[1] for row in rows])
    sizes = np.array([size for row in rows for size in row[2]], np.int32).reshape(-1, 2)
    held = {
        "sample_member": np.zeros(len(rows) + 1, np.int64),
        "sample_image": offsets(len(row[2]) for row in rows),
        "sample_key": keys[0],
        "sample_source": sources[0],
        "text_bytes": np.array([row[3] for row in rows], np.int64),
        "key_bytes": keys[1],
        "source_bytes": sources[1],
        "image_width": sizes[:, 0],
        "image_height": sizes[:, 1],
    }
    of_no_members = {name: np.zeros(0, dtype) for name, dtype in DTYPES.items()}
    shard_sample = offsets(shards or [len(rows)])
    return Columns(extensions=(), index_bytes=(), shard_sample=shard_sample, **of_no_members | held)


COLUMNS = columns_of(ROWS, shards=[2, 0, 4])
