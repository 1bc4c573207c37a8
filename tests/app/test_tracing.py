"""Traces: an enqueue and an attempt are spans, and the second is linked to the first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from millrace import App, Context, Snooze

SECRET = "hunter22-very-secret"


class Traced:
    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = App("memory://")
        assert self.app.trace(provider=self.provider, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    async def work(self) -> None:
        async with asyncio.timeout(60):
            await self.app.worker(burst=True).run(handle_signals=False)


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_an_attempt_is_linked_to_the_enqueue_that_it_came_from():
    traced = Traced()

    @traced.app.task(name="pack", queue="line")
    async def pack(n: int) -> None: ...

    async with traced.app:
        job = await pack.enqueue(n=1)
        await traced.work()

    [sent], [ran] = traced.spans("enqueue"), traced.spans("process")
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (sent.name, ran.name) == ("enqueue line", "process line")
    [link] = ran.links
    assert sent.context is not None and link.context.span_id == sent.context.span_id
    assert link.context.trace_id == sent.context.trace_id
    assert ran.parent is None  # a trace of its own
    assert facts(sent)["messaging.message.id"] == facts(ran)["messaging.message.id"] == job.id
    assert (facts(ran)["millrace.task"], facts(ran)["millrace.attempt"]) == ("pack", 1)
    assert "millrace.payload" not in facts(ran)


async def test_the_enqueue_is_part_of_the_trace_around_it():
    traced = Traced()

    @traced.app.task
    async def pack() -> None: ...

    tracer = traced.provider.get_tracer("shop")
    async with traced.app:
        with tracer.start_as_current_span("request") as outer:
            await pack.enqueue()

    [sent] = traced.spans("enqueue")
    assert sent.parent is not None and sent.parent.span_id == outer.get_span_context().span_id


async def test_every_way_in_carries_the_context():
    traced = Traced()
    app = traced.app

    @app.task(name="child")
    async def child() -> int:
        return 7

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child)

    async with app:
        await child.enqueue_many([{}, {}, {}])
        await child.enqueue_many([{}] * 8, chunk=4)
        await app.enqueue([child.spec(), child.spec()])
        worker = app.worker()
        running = asyncio.create_task(worker.run(handle_signals=False))
        assert await child.call() == 7
        await parent.enqueue()
        async with asyncio.timeout(60):
            while len(traced.spans("process")) < 16:
                await asyncio.sleep(0.01)
        await worker.stop()
        await running
    ran = traced.spans("process")
    assert all(len(span.links) == 1 for span in ran)
    by_task = {facts(span)["millrace.task"]: span for span in ran}
    [of_parent] = [span for span in ran if facts(span)["millrace.task"] == "parent"]
    assert of_parent.context is not None
    assert [span for span in ran if span.links[0].context.span_id == of_parent.context.span_id], by_task
    sent = sorted(facts(span)["messaging.batch.message_count"] for span in traced.spans("enqueue"))
    assert sent == [1, 1, 2, 3, 4, 4]


async def test_a_context_that_the_caller_put_there_stays():
    traced = Traced()

    @traced.app.task
    async def pack() -> None: ...

    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with traced.app:
        await pack.options(headers={"traceparent": theirs}).enqueue()
        await traced.work()
    [ran] = traced.spans("process")
    assert f"{ran.links[0].context.span_id:016x}" == "b7ad6b7169203331"


async def test_failures_are_told_without_what_is_hidden():
    traced = Traced(payload=True)

    @traced.app.task(max_attempts=1)
    async def login(user: str, password: str) -> None:
        raise ValueError(f"{user} cannot log in with {password}")

    async with traced.app:
        await login.enqueue(user="ada", password=SECRET)
        await traced.work()
    [ran] = traced.spans("process")
    assert ran.status.status_code is StatusCode.ERROR
    [event] = ran.events
    assert event.name == "exception" and (event.attributes or {})["exception.type"] == "ValueError"
    assert facts(ran)["millrace.payload"] == '{"user":"ada","password":"[redacted]"}'
    assert SECRET not in ran.to_json()


async def test_a_snooze_is_no_error():
    traced = Traced()

    @traced.app.task
    async def later() -> None:
        raise Snooze("1h")

    async with traced.app:
        await later.enqueue()
        await traced.work()
    [ran] = traced.spans("process")
    assert ran.status.status_code is StatusCode.UNSET and facts(ran)["millrace.verdict"] == "Snooze"


def test_programs_without_a_loop_are_traced_too():
    traced = Traced()

    @traced.app.task
    def pack() -> None: ...

    with traced.app.sync:
        job = pack.sync.enqueue()
        record = traced.app.sync.jobs.get(job.id)
    assert record is not None and "traceparent" in record.headers
    assert len(traced.spans("enqueue")) == 1


@pytest.mark.parametrize("missing", [True, False])
def test_without_the_library_it_does_nothing(missing: bool):
    program = (
        "import sys\n" + ("sys.modules['opentelemetry'] = None\n" if missing else "") + "from millrace import App\n"
        "app = App()\n"
        f"assert app.trace() is {not missing}\n"
        "assert bool(app.layers) is bool(app.tracing)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
