"""The sink: turns rows of a DataFrame or a stream into jobs.

Spark calls `writer.py`. `plan.py` decides the role of each column, `rows.py` builds specs, `enqueue.py` stores them.
Ids (`ids.py`) must stay the same from version to version, so that a repeated write enqueues nothing twice.
"""
