"""Page that shows samples as a model sees them.

`shown.py` makes the batches of a loader and takes them apart into samples and tokens, `pictures.py`
makes images visible, `facts.py` sums up the dataset, and `page.html` draws all of it. Something
else to look at is a value in one of these and a part of the page.
"""
