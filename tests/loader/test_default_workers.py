"""Number of workers that `make_loader` takes by default, with a GPU and without."""

import pytest

from datapipe import ImageSpec


@pytest.mark.parametrize(
    ("cpus", "options", "workers"),
    [
        (16, {"device": "cuda"}, 8),
        (16, {"device": "cuda", "image": None}, 8),
        (16, {"device": "cuda", "num_workers": "auto"}, 8),  # nothing was tuned
        (16, {"device": "cuda", "num_workers": 12}, 12),
        (16, {"device": "cuda", "workers": "processes"}, 16),
        (4, {"device": "cuda"}, 4),
        (16, {"device": "cpu"}, 16),
        (16, {}, 16),
    ],
)
def test_at_most_eight_threads_decode_for_a_gpu_by_default(
    pretend_gpu, make, cpus, options, workers
):
    pretend_gpu(cpus=cpus)
    assert make(**{"decoder": "cpu", "num_workers": None} | options).options.num_workers == workers


def test_dali_takes_all_cpus_by_default(pretend_gpu, make):
    pytest.importorskip("nvidia.dali")
    pretend_gpu(cpus=16)
    image = ImageSpec(size=64)
    assert make(device="cuda", num_workers=None, image=image).options.num_workers == 16
    # DALI has no resizing of this kind, so the CPU kernels decode.
    native = ImageSpec(resize="native")
    assert make(device="cuda", num_workers=None, image=native).options.num_workers == 8
