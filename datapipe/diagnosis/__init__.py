"""Rules that conclude what limits a loader or a training loop.

Figures come in, a verdict with its reason and the next things to do goes out; nothing is measured
here. `loader_rules.py` serves the profile, the tuner and the monitor, `loop_rules.py` the monitor;
`rank_times.py` tells exchange from waiting for a slower rank, `step_roofline.py` memory from
compute. A new rule is a function there, with a table of figures as its test.
"""
