"""The model: a batch of datapipe in, the loss of each token out.

Read `config` (sizes), `inputs` (a batch as the model takes it), `attention/` (samples that do not
see each other), `layers`, `vlm`. `sampling` writes texts with it.
"""
