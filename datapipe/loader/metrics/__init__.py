"""Time by stage, and figures of a working loader.

Marks of workers come in; seconds and bytes by stage go out. Each `StageClock` is written by one
thread and summed when it is read. A new stage is a name in `stage_clock.py` and a `watch.at`
where it begins.
"""
