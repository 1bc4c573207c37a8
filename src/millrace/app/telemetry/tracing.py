"""Traces: a span for each enqueue and each attempt. The job's headers link the attempt's span to the enqueue's.

The spans are linked, and not parent and child: a job may run hours after it was enqueued, or many times, so each
attempt has its own trace. Only the OpenTelemetry API is used. The program that installs the SDK decides where spans are
sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.app.handler.verdict import Snooze, Verdict
from millrace.app.payloads.serde import Serdes
from millrace.app.telemetry.redaction import Redaction, failure_without, read_plain, secrets_of
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Enqueued

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.context import Context
    from millrace.app.host import CallNext

PutIn = Callable[[Sequence[Spec]], Awaitable[list[Enqueued]]]
CARRIED = "traceparent"
LONGEST = 4_000  # characters of a payload in a span


def tracing_of(app: App, provider: Any, payload: bool, rule: Redaction | None) -> Tracing | None:
    """Set up tracing for an app and return it. Return None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        return None
    made = Tracing(trace.get_tracer("millrace", tracer_provider=provider), rule or Redaction(), app.serdes, payload)
    app.layers.insert(0, made.attempt)  # outermost, so that the span includes the other middleware
    return made


class Tracing:
    def __init__(self, tracer: Any, rule: Redaction, serdes: Serdes, payload: bool) -> None:
        from opentelemetry import propagate, trace

        self._tracer = tracer
        self._rule = rule
        self._serdes = serdes
        self._payload = payload
        self._trace = trace
        self._propagate = propagate

    # ── enqueue ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def sending(self, specs: Sequence[Spec]) -> Iterator[list[Spec]]:
        """Open a span for an enqueue, and yield the specs with the span's context in their headers."""
        queues = sorted({spec.queue for spec in specs})
        tasks = sorted({spec.task for spec in specs})
        facts: dict[str, Any] = {
            "messaging.system": "millrace",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(specs),
        }
        if len(queues) == 1:
            facts["messaging.destination.name"] = queues[0]
        if len(tasks) == 1:
            facts["millrace.task"] = tasks[0]
        if len(specs) == 1:
            facts["messaging.message.id"] = specs[0].id
        where = queues[0] if len(queues) == 1 else "many queues"
        span = self._tracer.start_as_current_span(
            f"enqueue {where}", kind=self._trace.SpanKind.PRODUCER, attributes=facts
        )
        with span:
            yield self._carrying(specs)

    def around(self, put_in: PutIn) -> PutIn:
        async def traced(specs: Sequence[Spec]) -> list[Enqueued]:
            with self.sending(specs) as carrying:
                return await put_in(carrying)

        return traced

    def _carrying(self, specs: Sequence[Spec]) -> list[Spec]:
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        if not carrier:
            return list(specs)
        return [_with_headers(spec, carrier) for spec in specs]

    # ── attempt ───────────────────────────────────────────────────────────────────────────────

    async def attempt(self, ctx: Context, call_next: CallNext) -> Any:
        """Run one attempt inside a span with its own trace, and return its result. This is the middleware."""
        job = ctx.job
        span = self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=_nothing(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=self._facts(job),
            links=self._links(job.spec.headers or {}),
            record_exception=False,
            set_status_on_exception=False,
        )
        with span as current:
            try:
                value = await call_next()
            except BaseException as error:
                self._ended_by(current, error, job)
                raise
            finally:
                children = ctx._run.children  # jobs that this attempt enqueues when it completes
                if children:
                    children[:] = self._carrying(children)
            if isinstance(value, Verdict):
                current.set_attribute("millrace.verdict", type(value).__name__)
            return value

    def _facts(self, job: Job) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "messaging.system": "millrace",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(job.spec.payload),
            "millrace.task": job.task,
            "millrace.attempt": job.attempt,
            "millrace.failures": job.failures,
            "millrace.seq": job.seq,
        }
        if job.worker is not None:
            facts["messaging.client.id"] = job.worker
        if job.started_at is not None:
            facts["millrace.waited_ms"] = max(0, job.started_at - job.available_at)
        if self._payload:
            shown = self._rule.plain(read_plain(job.spec.payload, job.spec.payload_serde, self._serdes))
            facts["millrace.payload"] = msgspec.json.encode(shown).decode()[:LONGEST]
        return facts

    def _links(self, headers: Mapping[str, str]) -> list[Any]:
        remote = self._trace.get_current_span(self._propagate.extract(dict(headers), context=_nothing()))
        context = remote.get_span_context()
        return [self._trace.Link(context)] if context.is_valid else []

    def _ended_by(self, span: Any, error: BaseException, job: Job) -> None:
        """Record an error on the span, as text with secrets removed."""
        if isinstance(error, Verdict):
            span.set_attribute("millrace.verdict", type(error).__name__)
            if isinstance(error, Snooze):
                return
        failure = failure_without(Failure.from_exception(error), secrets_of(job, self._rule, self._serdes))
        assert failure is not None
        facts = {
            "exception.type": failure.type,
            "exception.message": failure.message,
            "exception.stacktrace": failure.traceback,
        }
        span.add_event("exception", facts)
        span.set_attribute("error.type", failure.type)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, f"{failure.type}: {failure.message}"))


def _nothing() -> Any:
    from opentelemetry.context import Context

    return Context()


def _with_headers(spec: Spec, carrier: Mapping[str, str]) -> Spec:
    """Return the spec with trace headers added. A spec whose caller has set a trace header is returned unchanged."""
    headers = spec.headers or {}
    return spec if CARRIED in headers else msgspec.structs.replace(spec, headers={**headers, **carrier})
