"""Caches between storage and batches: in device memory, in memory and on disk.

Samples come in as bytes or decoded images under their numbers; the same entries go out without a
read or a decode. `entries.py` is the format of an entry, and `sample_cache.py` a loop over tiers.
A new tier is a module with a `Tier` (`tier.py`), a line in `factory.py` and a field of `spec.py`. A
new eviction policy is a module with a `Policy` (`tier.py`), a line in `factory.py` and a name in
`spec.py`.
"""
