"""`millrace demo`: the command, its screen and its summary. The web shop that it runs is in `millrace.demo`.

`screen.py` draws on a terminal; `lines.py` prints lines if there is no terminal. Both read the state of the running
demo from its `board`.
"""
