"""A vision-language model and its training loop, in plain PyTorch: to copy, and to measure with.

    python -m examples.vlm.train SHARDS --model tiny --steps 50 --pack 2048

Read in this order: `model/` (from a batch of datapipe to its losses), `data/`, `loop`, `train`.
Then what you need: `techniques`, `parallel/`, `measure/`.
"""
