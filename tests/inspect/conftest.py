"""Datasets to be damaged."""

from .damage import harmed as harmed
from .damage import originals as originals
from .damage import whole as whole
