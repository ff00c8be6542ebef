"""DALI's pipeline, which runs one batch at a time and survives images that it cannot read."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from datapipe.decode.dali import graph
from datapipe.decode.dali.graph import FAILURES, Window, build, first_line, window
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DatapipeError

_log = logging.getLogger(__name__)


class DaliEntry(NamedTuple):
    """Image for DALI: its data, its window, whether it is mirrored, and its pixels."""

    data: bytes
    window: Window
    mirrored: bool
    area: int


_PIXEL = simplejpeg.encode_jpeg(np.zeros((1, 1, 1), np.uint8), colorspace="GRAY")


class RefusedBatch(str):
    """Why DALI refuses a batch; it does not say because of which image."""


class DaliPipeline:
    """Runner of the graph, one batch at a time. Thread-safe. It raises as `build` does."""

    def __init__(
        self,
        spec: ImageSpec,
        device: torch.device,
        batch_size: int,
        threads: int,
        more: DaliOptions,
    ) -> None:
        self._spec = spec
        self._options = device, batch_size, threads, more
        self._pipeline = build(spec, *self._options)
        self._process = os.getpid()
        self._lock = threading.Lock()
        # DALI may read a batch's bytes until the next one is through.
        self._fed: deque[object] = deque(maxlen=2)
        self._is_fed_evenly = True

    def run(self, batch: Sequence[DaliEntry]) -> Tensor | RefusedBatch:
        """Run a batch of at least one image, or say why DALI takes only others.

        The result is `[n, 3, height, width]`, uint8 or float32, in memory of DALI's that lives as
        long as the tensor.
        """
        with self._lock:
            self.check_open()
            try:
                return self._pass(batch)
            except FAILURES as error:
                refused = RefusedBatch(first_line(error))
            # Not above: the error holds on to memory of the pipeline's, which another may need.
            self._recover()
            return refused

    def check_open(self) -> None:
        """Raise `DatapipeError` if the pipeline was closed, or belongs to the parent process."""
        if self._pipeline is None or os.getpid() != self._process:
            raise DatapipeError(
                "this DaliDecoder was closed, or made before a fork; make another one"
            )

    def close(self) -> None:
        """End DALI's threads and free its memory, except for tensors in use."""
        with self._lock:
            self._pipeline = None
            self._fed.clear()

    def _pass(self, batch: Sequence[DaliEntry]) -> Tensor:
        images, windows, mirrors, _ = zip(*batch, strict=True)
        fed = [np.frombuffer(image, np.uint8) for image in images]
        self._fed.append(fed)
        self._is_fed_evenly = False
        self._pipeline.feed_input(graph.IMAGES, fed)
        self._pipeline.feed_input(graph.WINDOWS, np.array(windows, np.float32))
        if self._spec.flip > 0:
            self._pipeline.feed_input(graph.MIRRORS, np.array(mirrors, np.int32))
        self._is_fed_evenly = True
        (out,) = self._pipeline.run()
        tensor: Tensor = from_dlpack(out.as_tensor())
        return tensor

    def _recover(self) -> None:
        """Run one pixel, in a new pipeline if need be; raise `DatapipeError` if that fails too."""
        pixel = DaliEntry(_PIXEL, window(self._spec, 1, 1), mirrored=False, area=1)
        # After an input that was refused, the others would be those of the batch before.
        if self._is_fed_evenly:
            try:
                self._pass([pixel])
                return
            except FAILURES:
                pass
        _log.warning("DALI's pipeline does not recover from an error, so it is built again")
        self._pipeline = None  # before another takes as much memory
        self._pipeline = build(self._spec, *self._options)
        try:
            self._pass([pixel])
        except FAILURES as error:
            raise DatapipeError(
                f"DALI fails with any image: {first_line(error)}; use decoder='cpu', or see "
                "whether the device has memory left"
            ) from error
