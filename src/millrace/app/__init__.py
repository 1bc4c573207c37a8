"""The API that a program imports: App, tasks, job handles, queues, pools, schedules, and their options.

Start at `app.py`. Nothing in this package runs jobs: `worker/` does, and only `App.worker` and `App.scheduler` import
it. All access to jobs uses the store protocol (`store/protocol.py`).
"""
