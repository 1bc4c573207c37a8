"""The demo: a small web shop on the embedded store, busy for some seconds, and an audit of what happened.

`millrace demo` runs and shows it. `shop.py` is an app as a user would write it; the rest makes it busy
(`workload.py`), follows it (`board.py`), ends one of its workers by force (`victim.py`) and judges its history
(`audit.py`).
"""
