"""Which job a line of the log belongs to, whoever writes it: a handler, or a library that it calls.

A context variable holds the job of the attempt that runs; it is seen on the loop, and in the thread of a `def` handler.
A filter puts its facts into every record, for formatters and log shippers to use.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

from millrace.domain.job import Job

current_job: ContextVar[Job | None] = ContextVar("millrace_job", default=None)


class JobLogFilter(logging.Filter):
    """Put it on a handler: `handler.addFilter(JobLogFilter())`. Records then have job, task, queue and attempt.

    Outside of an attempt they are None, so that a format may name them always; what a record brings itself stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_job.get()
        facts = vars(record)
        facts.setdefault("job", None if job is None else job.spec.id)
        facts.setdefault("task", None if job is None else job.spec.task)
        facts.setdefault("queue", None if job is None else job.spec.queue)
        facts.setdefault("attempt", None if job is None else job.attempt)
        return True
