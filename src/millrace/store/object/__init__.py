"""The object store: a queue without a server, in a bucket (`s3://…`) or a directory (`file:///…`).

`store.py` has the methods of the store protocol. Most of them call `engine/`, which reads objects, lets the ledger
decide, and writes the result. `claims/` finds jobs to claim, `events/` is the feed, `sweep/` repairs what crashes have
left incomplete, and `archive/` moves old jobs into files. `keys.py` defines the key of each object. Do not change these
keys, because existing stores depend on them.

All objects are written through `blobs.py`, which creates, swaps and lists named objects, and determines the outcome of
every write. Below it is `driver.py`, the interface of `directory/`, `s3/` and `memory.py`.
"""
