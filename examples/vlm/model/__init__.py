"""The model: a batch of datapipe in, the loss of each token out.

Read `config` (sizes), `inputs` (a batch as the model takes it), `attention/` (samples that do not
see each other), `layers`, `vision`, `vlm`. `sampling` and `kv_cache` write texts with it.
"""
