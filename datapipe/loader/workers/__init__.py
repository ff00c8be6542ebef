"""Worker threads and processes, which make batches ahead of the training loop.

Steps come in; finished batches go out in the order of the plan. `job_source.py` makes jobs of the
steps, `executor.py` gives them to pools of `datapipe.workers`: `thread_steps.py` to threads or the
caller's thread, `process_steps.py` to processes, whose messages are defined in `ipc.py`.
"""
