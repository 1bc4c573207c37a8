"""Code shared by the SQLite and PostgreSQL stores: the record of a job, and the unit of work of one step of the ledger.

Nothing here depends on a dialect: statements run by name through `ports.Statements`, which each store implements.
Start with `unit.py`; the statements themselves are in `queries/*.sql` of each store.
"""
