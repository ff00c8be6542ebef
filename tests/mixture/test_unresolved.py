"""Mixtures without rates or an end are refused with what to give."""

from typing import Any

import numpy as np
import pytest

from datapipe import Mixture, PlanError
from datapipe.mixture import resolve


def changing(*changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    weights = {"weights": {"a": 2}}
    return {"datasets": {"a": 1, "b": 1}, "schedule": [weights | c for c in changes], **options}


NEED_TOKENS = "need the tokens of each dataset; give text=TextSpec(...), or an amount in samples"

REFUSED: list[tuple[Any, tuple[int, ...], Any, str]] = [
    (
        {"a": 1, "b": 1},
        (0, 5),
        None,
        "dataset 'a' has no sample that takes part; change its where or limit, or leave it out",
    ),
    (
        {"a": 0, "b": 0},
        (5, 5),
        None,
        "all weights of the mixture are 0 at the beginning; give one of them a weight",
    ),
    (
        {"a": 1, "g": {"weight": 1, "datasets": {"b": 0}}},
        (5, 5),
        None,
        "all weights of group 'g' are 0 at the beginning; give one of them a weight, or the "
        "group 0",
    ),
    (
        {"weights": "tokens", "datasets": {"a": 1, "b": 1}},
        (5, 5),
        None,
        "weights by tokens need the tokens of each dataset; give text=TextSpec(...), or weights "
        "by samples",
    ),
    (
        {"a": 1, "b": 1},
        (5, 5),
        (7, 0),
        "dataset 'b' has 0.0 tokens a sample; leave it out, or leave samples without tokens out "
        "with where='tokens > 0'",
    ),
    (
        {"epoch": "5k tokens", "datasets": {"a": 1, "b": 1}},
        (5, 5),
        None,
        f"epoch: 5000 tokens {NEED_TOKENS}",
    ),
    (
        changing({"from": "5k tokens"}),
        (5, 5),
        None,
        f"schedule from 5000 tokens: 5000 tokens {NEED_TOKENS}",
    ),
    (
        changing({"from": "5k steps"}),
        (5, 5),
        None,
        "schedule from 5000 steps: the size of a step is not known; give samples or tokens",
    ),
    (
        changing({"from": 50, "over": 60}, {"from": 100}),
        (5, 5),
        None,
        "schedule from 100 samples: it begins at draw 100, and the change before it ends at draw "
        "110; start it later",
    ),
    (
        changing({"from": 50}, {"from": "100 tokens"}),
        (5, 5),
        (2, 2),
        "schedule from 100 tokens: it begins at draw 50, and the change before it ends at draw "
        "50; start it later",
    ),
    (
        {"datasets": {"a": 1, "b": 1}, "schedule": [{"from": 4, "weights": {"b": 0}}]},
        (5, 50),
        None,
        "epoch 'longest' never ends: dataset 'b' is not drawn as often as it has samples (50) "
        "before its weight is 0; give epoch 'shortest' or an amount such as '2M samples'",
    ),
    (
        {"a": 1e9, "b": 1e-9},
        (5, 10**3),
        None,
        "epoch 'longest' has more than 4,611,686,018,427,387,904 draws; give epoch 'shortest' or "
        "an amount, or weights nearer to each other",
    ),
]


@pytest.mark.parametrize(("content", "sizes", "tokens", "message"), REFUSED)
def test_what_cannot_be_resolved_is_refused(content, sizes, tokens, message):
    means = None if tokens is None else np.array(tokens, np.float64)
    with pytest.raises(PlanError) as refused:
        resolve(Mixture.of(content), np.array(sizes), means)
    assert str(refused.value) == message
