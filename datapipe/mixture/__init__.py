"""Mixtures of datasets: a mapping or a file in; a checked tree, rates and an epoch's draws out.

`spec.py` has the tree, whose fields say what is read and checked. `parse.py` makes it from a
mapping or file and writes it down. `file.py` reads files, and `place.py` names the line or the keys
of a value in messages.
`resolve.py` turns a mixture and the sizes of its datasets into rates, without I/O. A new option of
a dataset is a field in `spec.py`.
"""

from datapipe.mixture.resolve import Resolved, resolve
from datapipe.mixture.spec import Mixture, MixtureDataset, MixtureGroup, WeightChange

__all__ = [
    "Mixture",
    "MixtureDataset",
    "MixtureGroup",
    "Resolved",
    "WeightChange",
    "resolve",
]
