"""The object store: a queue with no server but a bucket (`s3://…`) or a directory (`file:///…`).

`blobs.py` is the layer everything else stands on: named bodies that are created, swapped and listed, each write with a
certain outcome. Drivers for a bucket, a directory and this process's memory lie below it.
"""
