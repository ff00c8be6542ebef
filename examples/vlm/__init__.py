"""A vision-language model and its training loop, in plain PyTorch: to copy, and to measure with.

    python -m examples.vlm.train SHARDS --model tiny --steps 50 --pack 2048

Read in this order: `config` (sizes), `inputs` (a batch of datapipe as the model takes it),
`attention/` (samples that do not see each other), `layers`, `vision`, `model`, `loop`, `train`.
"""
