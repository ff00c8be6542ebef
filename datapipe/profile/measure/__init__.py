"""Measurements of stages and of the machine, without conclusions.

A loader comes in; seconds, rates and bytes go out. `alone.py` runs its batch builder on one thread,
`roofline.py` the machine without a loader, `usage.py` measures a loader at work. A new measurement
is a module here that returns a frozen record.
"""
