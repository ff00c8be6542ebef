"""Measures of a run: rates, losses by dataset, memory, FLOPs, time by stage; the largest batch."""
