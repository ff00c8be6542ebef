"""Layouts of raw data that packing is judged by: 40 real sources and about 100 further ones.

`table.py` has the form of a layout, `raw.py` writes its files and keeps account of them, `judge.py`
compares what became of it with what should have. The other modules are the layouts themselves.
"""
