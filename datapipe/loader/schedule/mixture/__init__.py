"""Parts of a mixture, how they are drawn from, and how both change while a run continues.

A `Mixture` and the options of a loader come in; the parts with their samples, and the legs of the
run, go out. One dataset is a mixture of one part, which has no name.
"""
