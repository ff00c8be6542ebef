"""Workers: jobs in, results out in the order of the jobs.

One protocol (`protocol.py`) and four pools: the caller's thread (`inline.py`), threads
(`threads.py`), processes (`processes.py`) and tasks of a Ray cluster (`ray_tasks.py`). A pool takes
jobs lazily and a bounded number ahead, so the results that wait are bounded too. Another kind of
worker is another module with a pool.

A room with parallel work defines its jobs and uses their results, and leaves order, errors,
interrupts and the end of workers to this one.
"""
