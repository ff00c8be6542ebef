"""Models by name: the files of a checkpoint in, options of images and texts out.

`files.py` reads the files. A family of models that share a processor is a function, from a
`ModelFiles` to its `ImageSpec` and `TextSpec`, beside those of like images, and a line in
`families.py`.
"""
