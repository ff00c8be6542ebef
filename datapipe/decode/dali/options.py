"""Options of decoding with DALI, which this module does not import."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.declared import Count, Natural, Share, check_fields
from datapipe.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class DaliOptions:
    """Options of DALI: `make_loader(decoder=DaliOptions(...))`. Most of them are about a GPU.

    Args:
        hw_decoder_load: share of the JPEGs that a GPU's own JPEG decoder takes, 0 to 1; the rest
            goes to its other processors. DALI's default is 0.65.
        hybrid_huffman_threshold: pixels from which a JPEG that the decoder does not take has its
            Huffman codes read on the GPU, in place of DALI's threads. DALI's default.
        preallocate_width, preallocate_height: largest sides to expect, in pixels, for which the
            decoder's memory is taken at the start; 0 takes it as needed, which stops the GPU.
        pipelines: batches that DALI works on at once, each with its share of the threads: one is
            decoded while another is resized. Each takes memory of its own. None is 2 on a GPU, and
            1 on the CPU, where more are not faster.

    Raises:
        PlanError: a value is out of range.

    Examples:
        >>> dali = datapipe.DaliOptions(hw_decoder_load=0.9)
        >>> loader = datapipe.make_loader("shards/", batch_size=4, decoder=dali)  # doctest: +SKIP
    """

    hw_decoder_load: Share = 0.65
    hybrid_huffman_threshold: Natural = 1_000_000
    preallocate_width: Natural = 0
    preallocate_height: Natural = 0
    pipelines: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
