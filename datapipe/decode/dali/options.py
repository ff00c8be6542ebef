"""Options of decoding with DALI, which this module does not import."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.declared import Natural, Share, check_fields
from datapipe.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class DaliOptions:
    """Options of DALI: `make_loader(decoder=DaliOptions(...))`. On the CPU they change nothing.

    Args:
        hw_decoder_load: share of the JPEGs that a GPU's own JPEG decoder takes, 0 to 1; the rest
            goes to its other processors. DALI's default is 0.65.
        preallocate_width, preallocate_height: largest sides to expect, in pixels, for which that
            decoder's memory is taken at the start; 0 takes it as needed, which stops the GPU.

    Raises:
        PlanError: a value is out of range.

    Examples:
        >>> dali = datapipe.DaliOptions(hw_decoder_load=0.9)
        >>> loader = datapipe.make_loader("shards/", batch_size=4, decoder=dali)  # doctest: +SKIP
    """

    hw_decoder_load: Share = 0.65
    preallocate_width: Natural = 0
    preallocate_height: Natural = 0

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
