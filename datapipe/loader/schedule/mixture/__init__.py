"""Parts of a mixture, and how they are opened.

A `Mixture` and the options of a loader come in; the parts with their samples, and the first leg of
a run, go out. One dataset is a mixture of one part, which has no name.
"""
