"""Flows: jobs that are enqueued together, and that pass their results on.

Start at `compose.py`, which builds flows; `composer.py` has the methods of the app, with their types. `handle.py`
follows and changes the jobs of an enqueued flow; `members.py` has the ids of these jobs.
"""
