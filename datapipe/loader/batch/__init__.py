"""Batches: read, decode, tokenise, collate.

Sample numbers of a step come in; a dict of tensors and lists goes out. `builder.py` is the order
of work, `context.py` holds what all batches of a loader share. A new key of a batch is added in
`builder.py` and `collate.py`; a name in `meta`, in `sample_metadata.py`.
"""
