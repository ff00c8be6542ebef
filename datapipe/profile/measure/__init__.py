"""Measurements of stages and of the machine, without conclusions.

Parts of a loader come in; seconds, rates and bytes go out. `stage_benchmark.py` runs each stage
by itself, `roofline.py` the machine without a loader, `usage.py` measures a loader at work. A new
measurement is a module here that returns a frozen record.
"""
