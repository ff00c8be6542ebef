"""Options of the DALI decoder that are refused."""

import sys

import pytest
import torch

from datapipe.decode.dali.decoder import DaliDecoder
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError

SPEC = ImageSpec(size=(24, 32))


def test_a_missing_dali_comes_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(PlanError, match=r"pip install 'datapipe-vlm\[dali\]'"):
        DaliDecoder(SPEC, batch_size=1, threads=1)


@pytest.mark.parametrize("resize", ["shortest", "dynamic", "native", "tiles"])
def test_images_of_several_sizes_are_not_in_the_graph(resize):
    with pytest.raises(PlanError, match="use decoder='cpu'"):
        DaliDecoder(ImageSpec(resize=resize), batch_size=1, threads=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_before_anything_is_decoded():
    with pytest.raises(PlanError, match="needs a GPU, and torch sees none"):
        DaliDecoder(SPEC, device=torch.device("cuda", 0), batch_size=1, threads=1)
