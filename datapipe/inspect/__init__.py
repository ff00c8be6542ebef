"""Judgement of a dataset: its bytes are compared with its own checksums, its samples shown.

A dataset comes in, findings or pages go out; nothing of the dataset is changed. A further check is
a module here.
"""
