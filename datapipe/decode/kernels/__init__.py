"""Kernels compiled by numba that write pixels.

Rows of uint8 images come in; rows of a batch go out, normalised or not. Importing a module here
imports numba, so callers load it in a background thread. A new kernel needs a twin in torch that
it agrees with bit for bit.
"""
