"""The feed of the object store: one object per operation, named by the operation's stamp.

`publishing.py` writes the feed, and repairs it after a crash; the engine and the sweep use this module. `feed.py` reads
the feed in order, `spans.py` in parallel.
"""
