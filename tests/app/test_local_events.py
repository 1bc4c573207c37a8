"""Local events: typed, cheap when nobody listens, and never the emitter's problem (R-09, L-11)."""

import asyncio
import logging
import threading

import pytest

from millrace import App, InvalidInput, LocalEvent
from millrace.app.local_events import KINDS, LocalEventBus
from millrace.store.memory.store import MemoryStore


@pytest.fixture
def app():
    return App(MemoryStore())


def test_a_listener_hears_its_kind_and_no_other(app: App):
    heard: list[LocalEvent] = []
    app.on("completed", heard.append)

    app.bus.emit("completed", job="a", worker="w", result=42, duration=7)
    app.bus.emit("failed", job="b")

    [event] = heard
    assert (event.kind, event.job, event.worker, event.result, event.duration) == ("completed", "a", "w", 42, 7)
    assert (event.error, event.delay, event.more) == (None, None, {})


def test_a_listener_may_be_a_decorated_function_and_is_still_that_function(app: App):
    @app.on("failed")
    def tell(event: LocalEvent) -> None:
        heard.append(event.kind)

    heard: list[str] = []
    app.bus.emit("failed")
    tell(LocalEvent(kind="by hand"))

    assert heard == ["failed", "by hand"]


def test_a_bus_says_whether_anybody_wants_a_kind(app: App):
    def listener(event): ...

    assert not app.bus.wants("claimed")
    app.on("claimed", listener)
    assert app.bus.wants("claimed")
    app.bus.off("claimed", listener)
    assert not app.bus.wants("claimed")


async def test_async_listeners_run_on_the_loop(app: App):
    heard = []

    @app.on("completed")
    async def tell(event):
        await asyncio.sleep(0)
        heard.append(event.job)

    app.bus.emit("completed", job="a")
    app.bus.emit("completed", job="b")
    assert heard == []
    await app.bus.flush()

    assert heard == ["a", "b"]


async def test_an_event_from_another_thread_reaches_async_listeners_too(app: App):
    heard = []

    @app.on("error")
    async def tell(event):
        heard.append(event.error)

    app.bus.emit("error", error=1)
    thread = threading.Thread(target=app.bus.emit, args=("error",), kwargs={"error": 2})
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    await app.bus.flush()

    assert heard == [1, 2]


def test_without_any_loop_an_async_listener_is_left_out_with_a_warning(app: App, caplog):
    @app.on("error")
    async def tell(event): ...

    app.bus.emit("error")

    assert "no event loop runs here" in caplog.text


async def test_a_failing_listener_is_logged_and_breaks_nothing(app: App, caplog):
    heard = []

    @app.on("completed")
    def broken(event):
        raise RuntimeError("sync trouble")

    @app.on("completed")
    async def broken_later(event):
        raise RuntimeError("async trouble")

    app.on("completed", lambda event: heard.append(event.kind))

    with caplog.at_level(logging.ERROR, "millrace.bus"):
        app.bus.emit("completed")
        await app.bus.flush()

    assert heard == ["completed"]
    assert "sync trouble" in caplog.text and "async trouble" in caplog.text


def test_fields_without_a_place_of_their_own_are_kept(app: App):
    heard: list[LocalEvent] = []
    app.on("stalled", heard.append)

    app.bus.emit("stalled", job="a", shard=7)

    assert heard[0].more == {"shard": 7}


def test_only_kinds_that_exist_can_be_listened_to(app: App):
    with pytest.raises(InvalidInput, match="no local event 'complete'. Did you mean 'completed'"):
        app.on("complete", print)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="must be callable"):
        app.on("completed", 7)  # type: ignore[call-overload]
    assert {"claimed", "completed", "retried", "failed", "stalled", "lost", "error", "worker_stopped"} <= KINDS


def test_emitting_to_nobody_makes_no_event(monkeypatch):
    monkeypatch.setattr("millrace.app.local_events.LocalEvent", None)  # making one would fail

    LocalEventBus().emit("completed", job="a", result=1)
