"""Headers of encoded images: format, size, orientation.

The first bytes of a file come in; an `ImageInfo` goes out, without decoding. `formats.py` lists
the formats that shards keep, that are re-encoded, and that are refused. A new format is a row
in `formats.py` and a parser in `header.py`.
"""
