"""Handlers in child processes: the part in the worker, and the program of the child (docs/decisions/0007).

In the worker: `children.py`, `child.py`, `death.py`, `remote.py` and `guard.py`. In the child: `main.py` and
`attempt.py`. `wire.py` has the messages between them; both sides always run the same release of Millrace. The executor
calls `Children.call`.
"""
