"""The sweep of the object store: finds and repairs what crashes have left incomplete, a limited number of objects at a
time.

Begin with `sweeper.py`, which has the stages of a round in order. `round.py` decides which objects are read. `jobs.py`,
`index.py`, `shared.py` and `counters.py` each check one kind of object against the jobs' records.
"""

from millrace.store.object.sweep.sweeper import Sweeper

__all__ = ["Sweeper"]
