"""Schedules: declaring them, computing when they are due, and pausing them.

Start at `declare.py`; `timetable.py` computes the next tick. Workers enqueue the jobs of the ticks
(`worker/scheduler.py`), and the store ensures that each tick is enqueued once (`domain/rules/scheduling.py`).
"""
