"""The engine of the object store: reads objects, runs the ledger's rules over them, and writes the result with
compare-and-swap.

Begin with `engine.py`, the main loop. An operation reads objects through `view.py`. The ledger's rules are evaluated
over `tables.py` (built on `index_table.py` and `job_table.py`); `plan.py` collects the changes and `commit.py` writes
them. `objects.py` combines several swaps into one transaction. `values.py` defines the content of objects. Existing
stores depend on it, so fields keep their names and new fields need a default.
"""
