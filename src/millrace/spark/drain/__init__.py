"""Spark drains run a backlog of jobs with workers on Spark's executors. `app.on_spark(…)` starts one.

Do not confuse this with draining a queue, which cancels the waiting jobs. `driver.py` plans the partitions and watches
them; `partition.py` runs a worker in each partition; `millrace.worker` runs the jobs.
"""
