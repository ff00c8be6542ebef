"""Decoding of images: bytes to pixels, and pixels to rows of `pixel_values`.

Encoded images and an `ImageSpec` come in; arrays for a model go out. `image.py` decodes,
`transform.py` chooses a form of `forms/`, `dali/` does the same with NVIDIA DALI. A new
form is a module in `forms/`, an option in `spec.py` and a line in `transform.py`.
"""
