"""What Sentry gets from a worker, by a transport that keeps the events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from millrace import App, Bury
from millrace.contrib.sentry import MillraceIntegration


class Kept(Transport):
    """A transport that sends nothing and keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def sent() -> Iterator[Kept]:
    """Start Sentry without integrations of its own choice, and end it after the test."""
    transport = Kept()
    before = sentry_sdk.get_global_scope().client
    yield transport
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(before)


def start(transport: Transport, *integrations: MillraceIntegration) -> None:
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=transport,
        integrations=integrations,
        auto_enabling_integrations=False,
        max_breadcrumbs=20,
    )


async def finish(app: App) -> None:
    await app.worker(burst=True, poll_min=0.01).run(handle_signals=False)


def frames(event: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in event["exception"]["values"][-1]["stacktrace"]["frames"]]


async def test_a_failing_job_shows_a_traceback_in_the_log_and_an_event_with_its_stack_in_sentry(sent, caplog):
    app = App("memory://")
    start(sent, MillraceIntegration(app))

    @app.task(max_attempts=1)
    async def charge(order: int) -> None:
        raise ConnectionError(f"no answer for order {order}")

    async with app, app.worker():
        job = await charge.enqueue(7)
        with pytest.raises(Exception, match="no answer"):
            await job.result(wait=30)

    [event] = sent.events
    assert frames(event)[-1] == "charge"
    assert event["exception"]["values"][-1]["type"] == "ConnectionError"
    assert event["transaction"] == "charge"
    wanted = {"job": job.id, "task": "charge", "queue": "default", "attempt": "1", "reason": "max_attempts_exceeded"}
    assert event["tags"].items() >= wanted.items()
    assert "in charge\n" in caplog.text
    assert "ConnectionError: no answer for order 7" in caplog.text


async def test_without_the_integration_a_dead_job_is_an_event_with_a_stack_too(sent):
    app = App("memory://")
    start(sent)

    @app.task(max_attempts=1)
    def divide() -> float:
        return 1 / 0

    async with app:
        await divide.enqueue()
        await finish(app)

    [event] = sent.events
    assert frames(event)[-1] == "divide"
    assert "transaction" not in event
    assert event["extra"]["task"] == "divide"


async def test_breadcrumbs_and_tags_of_a_handler_go_to_its_own_event_only(sent):
    app = App("memory://")
    start(sent, MillraceIntegration(app))
    both = asyncio.Event()

    @app.task(max_attempts=1)
    async def charge(order: int, last: bool) -> None:
        sentry_sdk.set_tag("order", order)
        logging.getLogger("shop").warning("charging order %d", order)
        if last:
            both.set()
        await both.wait()
        raise Bury(f"order {order} is unknown")

    async with app:
        await charge.enqueue_many([(1, False), (2, True)])
        await finish(app)

    assert sorted(event["tags"]["order"] for event in sent.events) == [1, 2]
    for event in sent.events:
        crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "shop"]
        assert crumbs == [f"charging order {event['tags']['order']}"]


async def test_a_message_that_a_handler_sends_carries_its_job(sent):
    app = App("memory://")
    start(sent, MillraceIntegration(app))

    @app.task
    def look() -> None:  # in a thread
        sentry_sdk.capture_message("odd")

    async with app:
        job = await look.enqueue()
        await finish(app)

    [event] = sent.events
    assert (event["message"], event["transaction"], event["tags"]["job"]) == ("odd", "look", job.id)


async def test_a_retry_is_no_event(sent):
    app = App("memory://")
    start(sent, MillraceIntegration(app))

    @app.task(max_attempts=2, retry=[0])
    async def flaky() -> None:
        raise TimeoutError

    async with app:
        await flaky.enqueue()
        await finish(app)

    [event] = sent.events
    assert event["tags"]["attempt"] == "2"


async def test_deaths_without_an_exception_are_grouped_by_task(sent):
    app = App("memory://")
    start(sent, MillraceIntegration(app))

    @app.task(max_attempts=1, timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app:
        await slow.enqueue()
        await finish(app)

    [event] = sent.events
    assert event["fingerprint"] == ["{{ default }}", "slow", "timeout"]
    assert event["tags"]["reason"] == "timeout"


async def test_a_secret_of_the_payload_is_in_no_event(sent):
    app = App("memory://")
    start(sent, MillraceIntegration(app))

    @app.task(max_attempts=1)
    async def log_in(user: str, password: str) -> None:
        raise PermissionError(f"{user} cannot log in with {password}")

    async with app:
        await log_in.enqueue("ada", "correct horse battery")
        await finish(app)

    [event] = sent.events
    assert "correct horse battery" not in repr(event)
    assert "PermissionError: ada cannot log in with [redacted]" in event["logentry"]["formatted"]
    assert event["tags"]["task"] == "log_in"


def test_an_app_that_is_given_twice_is_isolated_once():
    app = App("memory://")

    MillraceIntegration(app)
    MillraceIntegration(app, App("memory://"))

    assert len(app.layers) == 1
