"""Loader: it executes a plan and yields batches.

A dataset and options come in; batches, a state and figures go out. `make_loader.py` puts the
parts together, `loader.py` is the public object. The parts have rooms of their own:
`schedule/`, `batch/`, `workers/`, `device/` and `metrics/`.
"""
