"""Records of annotation files, and the parts that their readers share.

JSON, JSONL, CSV, TSV, Parquet and lists of lines come in; raw samples go out. `streams/` reads
records, `fields/` decides what their fields mean, `images/` finds their images. What every reader
of records or captions needs belongs in `reader.py`.
"""
