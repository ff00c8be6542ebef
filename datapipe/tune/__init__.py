"""Timed sweeps over a loader, and the smallest settings that are as fast as the fastest.

A factory of loaders and settings to try come in; rates, a choice and its reason go out.
`sweep.py` runs interleaved trials, `effects.py` compares and chooses. A new setting to try is a
field in `setting.py`.
"""
