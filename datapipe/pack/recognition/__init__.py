"""Recognition of raw data: which reader takes it, and which files no reader takes.

A survey comes in; the reading that is plainly meant goes out, or an error that lists the ways.
`choose.py` asks every reader and compares the readings that fit by their counts (`counts.py`),
`unused_files.py` counts the rest. A rule that settles an ambiguity belongs in `choose.py`, with a
test of the counts. Where no reader fits, `unrecognized.py` says what is there; where images are
without texts, `textless.py` names the files that may be theirs.
"""
