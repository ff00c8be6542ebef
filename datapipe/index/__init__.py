"""The index: where the bytes of each sample are, their sizes, checksums and lengths.

Tar files and Parquet parts come in; a `Dataset` of memory-mapped columns and a manifest go out.
`dataset.py` opens, `columns.py` holds what plan and loader read, `manifest.py` is `dataset.json`.
A new fact about samples is a column in `rows.py`, and in `columns.py` if the plan needs it.
"""
