"""Schedule of a run: its steps, and the position in them.

Options and token counts come in; steps with their samples, and a state, go out.
`origin.py` gives the plan its samples, `run_schedule.py` walks through it, `state.py` is the saved
position. A new option of a run is a field in `options.py`; of the plan, in `plan/options.py`.
"""
