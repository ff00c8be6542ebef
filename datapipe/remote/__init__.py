"""Files behind URLs: ranges, uploads, retries.

URLs and byte ranges come in; bytes go out, with retries and a bounded number of requests.
`folder.py` reads, `download.py` copies and `upload.py` writes through fsspec, with the attempts and
pauses of `retry.py`.
A new protocol is one that fsspec knows.
"""
