"""Stores: where jobs are kept. One protocol, several backends, chosen by URL.

Start at `protocol.py`; `connect.py` chooses the backend. A backend imports `domain/` and this folder, never another
backend; `sql/` is shared by the two SQL stores. `memory/` is the shortest one to read.
"""
