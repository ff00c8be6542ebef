"""Timed trials of a loader, and the smallest settings that are as fast as the fastest.

A factory of loaders and settings to try come in; rates, a choice and its reason go out. `trial.py`
times one setting, `sweep.py` interleaves trials, `choice.py` compares and chooses, `paced.py` does
so at the speed of training. A new setting to try is a field in `setting.py`.
"""
