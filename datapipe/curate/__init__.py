"""Datasets made from other datasets: chosen, divided, joined and repaired.

Samples go from shards to shards by byte ranges, and are neither decoded nor encoded. A further way
of choosing samples is a function in `choose.py`.
"""
