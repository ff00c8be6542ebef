"""Contents of the folder that is packed: images, texts, archives, other files.

A path comes in; a survey of it goes out, and raw samples that name their bytes without reading
them. `survey.py` lists each folder once, `archives.py` looks at archives; `raw_sample.py` defines
the samples. What a file's name tells belongs in `file_kinds.py`, also a name that never means data;
what its first bytes tell in `file_starts.py`.
"""
