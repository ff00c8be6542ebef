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
    with pytest.raises(PlanError, match=r"pip install 'datapipe\[dali\]'"):
        DaliDecoder(SPEC, batch_size=1, threads=1)


@pytest.mark.parametrize("resize", ["shortest", "dynamic", "native", "tiles"])
def test_images_of_several_sizes_are_not_in_the_graph(resize):
    with pytest.raises(PlanError, match="use decoder='cpu'"):
        DaliDecoder(ImageSpec(resize=resize), batch_size=1, threads=1)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"threads": 0},
        {"device": "gpu"},
        {"device_id": 0},
    ],
)
def test_options_out_of_range_are_refused(options):
    name = "device" if "device_id" in options else next(iter(options))
    with pytest.raises(PlanError, match=name):
        DaliDecoder(SPEC, **{"batch_size": 1, "threads": 1} | options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_before_anything_is_decoded():
    with pytest.raises(PlanError, match="device='mixed' needs a GPU"):
        DaliDecoder(SPEC, device="mixed", batch_size=1, threads=1)
