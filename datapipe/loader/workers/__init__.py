"""Worker threads and processes, which make batches ahead of the training loop.

Steps come in; finished batches go out in the order of the plan. `job_source.py` connects steps
and workers, `thread_executor.py` and `process_executor.py` run them. Messages between processes
are defined in `ipc.py`.
"""
