"""Rules that conclude what limits a loader or a training loop.

Figures come in, a verdict with its reason and the next things to do goes out; nothing is measured
here. `loader_rules.py` serves the profile, the tuner and the monitor, `loop_rules.py` the monitor;
`step_figures.py` tells memory from compute, and exchange from waiting for a slower rank. A new rule
is a function there, with a table of figures as its test.
"""
