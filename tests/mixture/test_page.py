"""The page on mixtures: its examples are parsed and resolved."""

import re
from pathlib import Path

import numpy as np
import pytest

from datapipe import Mixture, PlanError
from datapipe.mixture import resolve
from datapipe.quantities import Amount

PAGE = (Path(__file__).parents[2] / "docs/mixtures.md").read_text("utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^    mixture = datapipe\.Mixture\.of\((.*?)\)(?: .*)?$", PAGE, re.MULTILINE)


def test_examples_of_the_page_are_read_and_resolved(tmp_path):
    mixtures = [Mixture.of(eval(content, {})) for content in LINES]
    for content in FILES:
        (tmp_path / "mixture.yaml").write_text(content)
        mixtures.append(Mixture.load(tmp_path / "mixture.yaml"))
    assert len(mixtures) == 4
    for mixture in mixtures:
        count = len(mixture.datasets)
        sizes, tokens = np.full(count, 10**6), np.full(count, 512.0)
        assert resolve(mixture, sizes, tokens, Amount(16, "samples")).epoch > 10**6


def test_messages_of_the_page_are_those_of_the_parser():
    for mixture in ({"a": {"wieght": 1}}, {"chats": {"weight": -1}}):
        with pytest.raises(PlanError) as refused:
            Mixture.of(mixture)
        message = str(refused.value).removeprefix('mixture["a"]["wieght"]: ')
        assert message[:80] in PAGE
