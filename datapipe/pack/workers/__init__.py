"""Workers of a pack: processes that read, check and lay out samples.

Raw samples come in; parts of shards in memory, with rows of the index, go out. `pool.py` sends
chunks to processes of `datapipe.workers`, `worker.py` prepares a chunk, and `prepare.py` makes the
members of a sample. A step between file and shard belongs in `prepare.py`.
"""
