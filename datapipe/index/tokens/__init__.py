"""Token counts and tokens of every sample, kept beside the index.

Encoded texts come in; memory-mapped columns per tokenizer and template go out. `counting.py` lets
one process count at a time, and keeps the finished parts of an interrupted count. A new figure
about tokens is a column in `columns.py`.
"""
