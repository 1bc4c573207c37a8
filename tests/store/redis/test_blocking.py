"""Blocking enqueues: a thread writes to the server itself, and leaves what is not usual to the event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import MovedError, ReadOnlyError

from millrace import App
from millrace.app.sync.background import background
from millrace.store.redis import RedisStore
from millrace.store.redis import blocking as module
from millrace.testing.builders import a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.redis_server import url_for


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(url_for(tmp_path))
    made.task(work)
    with made.sync:
        yield made
        assert_holds(made.sync.run(gather(made.store, since=0)))


async def work(n: int) -> None: ...


def enqueue(app: App, n: int, **options: Any) -> Any:
    return app.find_task("work").options(**options).sync.enqueue(n)


def without_loop(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, a call on the event loop fails."""
    enqueue(app, 0)

    def refuse(coroutine: Any) -> Any:
        coroutine.close()
        raise AssertionError("on the event loop")

    monkeypatch.setattr(background, "run", refuse)


def failing_once(monkeypatch: pytest.MonkeyPatch, fail: Any) -> None:
    """The next request has its effect; then `fail` is called instead of a reply."""
    request = module._SocketConnection.request

    def broken(self: module._SocketConnection, words: tuple[Any, ...]) -> Any:
        monkeypatch.setattr(module._SocketConnection, "request", request)
        request(self, words)
        return fail()

    monkeypatch.setattr(module._SocketConnection, "request", broken)


def raising(error: BaseException) -> Any:
    def fail() -> Any:
        raise error

    return fail


def test_enqueues_of_many_threads_need_no_event_loop(app: App, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        without_loop(app, patched)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda n: enqueue(app, n), range(200)))
        app.find_task("work").sync.enqueue_many([{"n": n} for n in range(2_500)])

    assert {answer.enqueued.status for answer in answers} == {"queued"}
    assert len({answer.seq for answer in answers}) == 200
    assert app.sync.queue("default").counts().waiting == 2_701


def test_what_the_fast_path_cannot_do_is_done_on_the_event_loop(app: App):
    assert [enqueue(app, n, id="same").enqueued.status for n in range(3)] == ["queued", "duplicate", "duplicate"]
    assert [enqueue(app, n, key="k").enqueued.status for n in range(2)] == ["queued", "duplicate"]
    app.sync.queue("default").set(max_depth=10)
    assert enqueue(app, 7).enqueued.status == "queued"


def test_an_enqueue_whose_reply_is_lost_is_repeated_and_takes_effect_once(app: App, monkeypatch: pytest.MonkeyPatch):
    failing_once(monkeypatch, raising(TimeoutError("no reply")))
    lost = enqueue(app, 1)
    after = enqueue(app, 2)

    assert (lost.enqueued.status, after.enqueued.status) == ("queued", "queued")
    assert app.sync.queue("default").counts().waiting == 2


def test_a_server_that_is_no_longer_the_master_is_left_to_the_event_loop(app: App, monkeypatch: pytest.MonkeyPatch):
    failing_once(monkeypatch, lambda: ReadOnlyError("READONLY You can't write against a read only replica."))
    enqueue(app, 1)
    assert isinstance(app.store, RedisStore)

    assert app.store.enqueue_blocking([a_spec(id="soon", token="soon")]) is None  # until the pause is over
    monkeypatch.setattr(app.store._blocking, "_paused_until", 0.0)
    assert app.store.enqueue_blocking([a_spec(id="later", token="later")]) is not None


def test_an_interrupted_thread_leaves_no_reply_behind_for_the_next(app: App, monkeypatch: pytest.MonkeyPatch):
    first = enqueue(app, 1)
    failing_once(monkeypatch, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        enqueue(app, 2)

    assert enqueue(app, 3).seq == first.seq + 2


def test_connections_that_the_server_has_closed_are_replaced(app: App, tmp_path: Path):
    enqueue(app, 1)
    with Redis.from_url(url_for(tmp_path).partition("?")[0]) as client:
        client.script_flush()
        client.client_kill_filter(_type="normal", skipme=True)

    assert [enqueue(app, n).enqueued.status for n in range(3)] == ["queued"] * 3


def test_no_more_connections_are_opened_than_allowed(tmp_path: Path):
    url = url_for(tmp_path)
    app = App(f"{url}{'&' if '?' in url else '?'}connections=2")
    app.task(work)
    with app.sync, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: enqueue(app, n), range(100)))
        assert isinstance(app.store, RedisStore)
        assert app.store._blocking._open <= 2

    assert len({answer.seq for answer in answers}) == 100


def test_a_write_that_must_be_confirmed_is_made_on_the_event_loop(tmp_path: Path):
    url = url_for(tmp_path)
    store = RedisStore(f"{url}{'&' if '?' in url else '?'}durability=replicated")

    assert store.enqueue_blocking([a_spec(token="t")]) is None


def test_only_specs_with_tokens_are_enqueued_without_the_event_loop(tmp_path: Path):
    assert RedisStore(url_for(tmp_path)).enqueue_blocking([a_spec(token="")]) is None


def test_a_forked_child_opens_its_own_connections(app: App):
    before = enqueue(app, 1)
    child = os.fork()
    if child == 0:
        fine = False
        try:
            fine = all(enqueue(app, n).enqueued.status == "queued" for n in range(20))
        finally:
            os._exit(0 if fine else 1)
    here = [enqueue(app, n).enqueued.status for n in range(20)]
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert here == ["queued"] * 20
    assert enqueue(app, 2).seq == before.seq + 41


def test_a_node_that_redirects_in_turn_is_forgotten(app: App, monkeypatch: pytest.MonkeyPatch):
    enqueue(app, 1)
    here = app.store.url.split("/")[2]
    assert isinstance(app.store, RedisStore)
    failing_once(monkeypatch, lambda: MovedError(f"1 {here}"))
    enqueue(app, 2)
    followed = app.store._blocking._place
    failing_once(monkeypatch, lambda: MovedError("1 127.0.0.1:1"))
    enqueue(app, 3)

    assert followed is not None
    assert app.store._blocking._place is None
    assert enqueue(app, 4).enqueued.status == "queued"
