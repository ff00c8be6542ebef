"""NVIDIA DALI as a decoder, on the CPU and on GPUs.

Batches of encoded images come in; the pixels that `decode_rgb` gives go out. `decoder.py` decides
which images DALI decodes, `graph.py` is the one graph that it runs, `jpeg.py` keeps from it the
JPEGs that it would read differently.
"""
