"""`where=`: an expression over columns that says which samples take part."""

from datapipe.index.where.evaluate import Where, evaluate, parse_where
from datapipe.index.where.select import select_where

__all__ = ["Where", "evaluate", "parse_where", "select_where"]
