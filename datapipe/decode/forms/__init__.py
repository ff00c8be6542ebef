"""Forms of images: one size, native size, padded, tiles.

A decoded image comes in; rows of `pixel_values` and their geometry go out. `image_transform.py`
has what the forms share. A new form is a module here, chosen by `decode/transform.py`.
"""
