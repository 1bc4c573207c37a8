"""Claims on the object store. Begin with `claiming.py`, which shows what one claim does.

`ready.py` caches the index of ready jobs, and decides how long a listing is reused. `log_scan.py` finds claimable jobs
by their records, if the index is not used or may lack keys.
"""
