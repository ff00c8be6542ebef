"""Packing of raw image-text data into shards with an index and a manifest.

Files of any known format come in; a dataset, a list of rejects and a report go out. `input/`
surveys what is there, `recognition/` chooses a reader, `readers/` and `records/` read, `workers/`
prepare samples, `writers/` write them.
A new raw format is a module in `readers/`.
"""
