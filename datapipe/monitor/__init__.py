"""The monitor of a training loop: where its time goes, and what to do about it.

Turns of the loop come in; a report with a verdict goes out. `session.py` brings clocks, recorder
and the device together, `recorder.py` records single steps by torch's profiler, `report.py` turns
their counters into figures, from which `diagnosis/loop_rules.py` concludes. A new clock or probe is
a module here and a field of `Counters`.
"""
