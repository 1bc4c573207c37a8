"""Redaction of events: an error in an event may quote hidden values of the job's payload."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.app.telemetry.redaction import NO_SECRETS, UNKNOWN, JobRedactor, Secrets
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.views.timeline import EventView, event_view
from millrace.web.state import ServerState

EVENT = 200  # bytes that an event without an error counts for


class EventRedactor:
    """Hides secrets in the errors of events. `jobs` are the jobs of these events; each job is searched for secrets only
    once.
    """

    def __init__(self, server: ServerState, jobs: Iterable[Job | None]) -> None:
        self._server = server
        self._jobs = {job.id: job for job in jobs if job is not None}
        self._secrets: dict[str, Secrets] = {}

    def size(self, events: Iterable[Event]) -> int:
        """Return roughly how many bytes must be searched for secrets to show the events."""
        return sum(
            EVENT if event.error is None else len(job.spec.payload) if (job := self._jobs.get(event.job)) else EVENT
            for event in events
        )

    def secrets(self, event: Event) -> Secrets:
        """Return the secrets of the event's job; UNKNOWN if the job was deleted or enqueued again, because its payload
        is gone.
        """
        if not self._server.redaction.phrases:
            return NO_SECRETS
        job = self._jobs.get(event.job)
        if job is None or job.generation != event.generation:
            return UNKNOWN
        known = self._secrets.get(job.id)
        if known is None:
            redactor = JobRedactor(job, self._server.redaction, self._server.app.serdes)
            known = self._secrets[job.id] = redactor.secrets
        return known

    def view(self, event: Event) -> EventView:
        if event.error is None:
            return event_view(event)
        return event_view(msgspec.structs.replace(event, error=self.secrets(event).failure(event.error)))
