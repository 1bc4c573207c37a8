"""The objects that a handler uses while it runs: its context, and verdicts such as Retry.

Start at `context.py`. A context accesses its run only through a protocol, because the handler may run in a child
process: see `worker/run.py` and `worker/process/attempt.py`. `address.py` finds a task in a child process.
"""
