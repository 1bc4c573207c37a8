"""Traces, log context and log levels, and the redaction of secrets in all output.

`redaction.py` decides what is hidden in logs, traces, HTTP responses and dashboards: change it only there. `tracing.py`
is middleware and a wrapper around enqueue. What a worker logs about its jobs is in `worker/reporter.py`.
"""
