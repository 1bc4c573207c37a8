"""Compaction of archived jobs into Parquet, and reading them together with live jobs.

`operations.py` compacts archived jobs, and merges and expires the files; `read.py` reads the files; `rows.py` defines
their columns. `store/object/archive/files.py` defines the order in which an operation changes the archive.
"""
