"""The worker, which runs jobs.

Start at `worker.py`. `dispatcher.py` claims jobs, `executor.py` runs their handlers (`run.py` is one run), `settler.py`
writes how runs ended, `ahead.py` says how many jobs may wait for a slot, and `leases.py` extends leases and reclaims
expired ones. Child processes are in `process/`. A worker accesses the app only through the interface in `app/host.py`,
and the store only through `store/protocol.py`.
"""
