"""The objects that a handler uses while it runs: its context, and verdicts such as Retry.

Start at `context.py`. A context accesses its run only through the interface `RunningAttempt`, because a handler runs
either in the worker's process (`worker/run.py`) or in a child process (`worker/process/attempt.py`). `address.py` finds
a task in a child process.
"""
