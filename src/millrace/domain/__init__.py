"""The rules of the queue, as pure functions: the time and any random number are arguments, and nothing does I/O.

Start at `ledger.py`, then `rules/`. `job.py`, `change.py`, `event.py` and `request.py` define the data. `tables.py`
defines the methods that a store provides to the ledger. This package imports no other part of Millrace. Every store
must behave like the ledger.
"""
