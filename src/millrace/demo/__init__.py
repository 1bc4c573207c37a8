"""The demo: a small web shop on the embedded store, busy for some seconds, and an audit of its history.

`millrace demo` runs and shows the demo. `shop.py` is an app as a user would write it. The other modules enqueue the
app's jobs (`workload.py`), follow them (`board.py`), kill one of its workers (`victim.py`) and check its history
(`audit.py`).
"""
