"""The rules, one concern per module: pure functions over the tables (`domain/tables.py`), called by the ledger.

`domain/ledger.py` has the operations of producers and workers and calls the rules. Other operations are here:
`operate.py`, `replaying.py`, `scheduling.py` and `upkeep.py`. Nothing here reads a clock.
"""
