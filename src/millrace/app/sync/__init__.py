"""The blocking API, for programs without an event loop: the same calls, run on a background loop.

Start at `app.py`; `background.py` owns the loop's thread. A method that is added to `app.jobs` or `app.queue` must be
added to `views.py` too.
"""
