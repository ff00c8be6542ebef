"""Measurements on a GPU, a module for each stage of `benchmarks/gpu_campaign.sh`.

`smoke.py` runs every path once; `decode.py` measures decoders, `feed.py` copies and waiting.
`decoders.py` and `loading.py` are what they measure, `aims.py` the figures that were aimed for.
Attention and the ladder are stages too, and measure a CPU as well: they are not in this room.
"""
