"""Models by name: the files of a checkpoint in, options of images and texts out.

`files.py` reads the files. A family of models that share a processor is a module with one
function, from a `ModelFiles` to its `ImageSpec` and `TextSpec`, and a line in `families.py`.
"""
