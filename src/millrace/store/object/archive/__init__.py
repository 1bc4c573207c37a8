"""Compacted jobs of the object store: finished jobs that were moved into files.

`files.py` has the manifest of valid files, and explains the order of writes that makes a crash harmless.
`compaction.py` moves jobs into files. Reading and merging the files is done in `millrace.spark.archive`.
"""
