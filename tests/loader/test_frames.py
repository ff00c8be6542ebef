"""The way of a sample through the code is short."""

from pathlib import Path

import pytest
import simplejpeg

MOST = 6  # frames between the loader's entry in a worker and libjpeg-turbo, both excluded

# The user's module is imported by the worker too, thread or process.
RECORDER = """
    import inspect
    from pathlib import Path

    import simplejpeg

    _decode_jpeg = simplejpeg.decode_jpeg

    def record(*args, **options):
        names, frame = [], inspect.currentframe().f_back
        while frame is not None:
            if "datapipe" in Path(frame.f_code.co_filename).parts:
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        with Path(__file__).with_suffix(".txt").open("a") as file:
            file.write(" ".join(names) + "\\n")
        return _decode_jpeg(*args, **options)

    simplejpeg.decode_jpeg = record

    def same(sample, generator):
        return sample
"""


@pytest.mark.parametrize(
    ("workers", "entry"), [("threads", "_PieceWork.run"), ("processes", "BatchWorker.__call__")]
)
def test_six_frames_lead_from_a_worker_to_the_jpeg_decoder(make, user_module, workers, entry):
    decode_jpeg = simplejpeg.decode_jpeg
    module = user_module(RECORDER)
    try:
        loader = make(transform=module.same, workers=workers, num_workers=1)
        next(iter(loader))
        loader.close()
    finally:
        simplejpeg.decode_jpeg = decode_jpeg
    lines = Path(module.__file__).with_suffix(".txt").read_text().splitlines()
    stacks = [line.split() for line in lines]
    between = [stack[: stack.index(entry)] for stack in stacks if entry in stack]
    assert between
    assert all(0 < len(stack) <= MOST for stack in between), between
