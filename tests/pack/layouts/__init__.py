"""Layouts of raw data that packing is judged by: 40 real sources and some 200 further ones.

`table.py` has the form of a layout, `raw.py` writes its files and keeps account of them, `judge.py`
compares what became of it with what should have. `stated.py` reads layouts that are stated in
`further/*.yaml`; the other modules are the layouts themselves.
"""
