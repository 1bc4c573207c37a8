"""Pools: queues with N ordered lanes and one handler, with control, hooks and status.

Start at `pool.py`; producers use `task.py`. The rules that choose a job's lane, and that decide when the job may run,
are in `domain/rules/lanes.py` and `domain/rules/step.py`.
"""
