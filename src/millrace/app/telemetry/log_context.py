"""A logging filter that adds the running job to log records, also to those of libraries that a handler calls.

A context variable has the job of the current attempt. It is set on the event loop and in the thread of a `def` handler.
The filter copies the job's id, task, queue and attempt to every record.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

from millrace.domain.job import Job

current_job: ContextVar[Job | None] = ContextVar("millrace_job", default=None)


class JobLogFilter(logging.Filter):
    """A logging filter that adds job, task, queue and attempt to records: `handler.addFilter(JobLogFilter())`.

    Outside an attempt these fields are None, so that a format string can always use them. Fields that a record already
    has are kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to the record, and keep it."""
        job = current_job.get()
        facts = vars(record)
        facts.setdefault("job", None if job is None else job.spec.id)
        facts.setdefault("task", None if job is None else job.spec.task)
        facts.setdefault("queue", None if job is None else job.spec.queue)
        facts.setdefault("attempt", None if job is None else job.attempt)
        return True
