"""`millrace worker`, `workers` and `monitor`, and the supervisor of several worker processes.

`millrace.worker` has the code that runs jobs. An option that can also be set by an environment variable or in
pyproject.toml is declared in `app/settings.py`.
"""
