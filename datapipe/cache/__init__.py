"""Caches between storage and batches: in device memory, in memory and on disk.

Samples come in as bytes or decoded images under their numbers; the same entries go out without a
read or a decode. `entries.py` is the format of an entry; `memory.py`, `disk.py` and `device.py`
hold entries; `sample_cache.py` asks one after the other. A new tier or eviction policy is a module
here and a line in `factory.py`.
"""
