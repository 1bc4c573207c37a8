"""Frame tasks: tasks whose handler takes many jobs as one table, an Arrow table or a pandas frame.

Start at `task.py`; `row.py` and `columns.py` read the declared columns, `tables.py` converts rows. Nothing here claims
or settles jobs: a frame task is a batch task (`app/batch_task.py`), which `worker/batch.py` runs.
"""
