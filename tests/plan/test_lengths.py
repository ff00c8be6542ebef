import numpy as np

from datapipe.plan.lengths import planned
from datapipe.plan.ragged import edges

NONE = np.array([], np.int64)


def test_a_text_that_cannot_be_used_stays_so():
    lengths = planned(
        np.array([-1, 4], np.int32),
        image_at=NONE,
        image_counts=NONE,
        image_offsets=edges(np.zeros(2, np.int64)),
        label_start=NONE,
        label_stop=NONE,
        label_offsets=edges(np.zeros(2, np.int64)),
        limit=3,
    )
    assert lengths.tokens.tolist() == [-1, 3]
    assert lengths.labels.tolist() == [0, 0]


def test_an_image_larger_than_the_limit_takes_all_after_it_away():
    lengths = planned(
        np.array([6]),
        image_at=np.array([2, 4]),
        image_counts=np.array([100, 1]),
        image_offsets=np.array([0, 2]),
        label_start=np.array([0]),
        label_stop=np.array([6]),
        label_offsets=np.array([0, 1]),
        limit=50,
    )
    assert (lengths.tokens[0], lengths.labels[0]) == (2, 1)
    assert (lengths.images[0], lengths.image_tokens[0]) == (0, 0)
