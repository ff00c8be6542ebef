"""The profile of a loader: the time of each stage, the limit, the remedies.

A loader comes in; measurements, limits and ranked remedies go out. `measure/` measures, the rules
of `datapipe.diagnosis` conclude, `report.py` shows the same figures as text and as a page. A new
remedy belongs in `remedies.py`, a new resource in `measure/usage.py` and `diagnosis/`.
"""
