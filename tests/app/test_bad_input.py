"""Bad input gets a clear error and loses nothing."""

import pytest

from millrace import (
    App,
    DependencyCycle,
    DuplicateKey,
    InvalidInput,
    MissingDriver,
    PayloadInvalid,
    QueueError,
    UnknownDependency,
    UnknownTask,
)
from millrace.store.memory.store import MemoryStore


@pytest.fixture
def app():
    return App(MemoryStore())


@pytest.fixture
def send(app: App):
    @app.task
    async def send(to: str, weight: float | None = None, data: dict | None = None): ...

    return send


def nested(levels: int) -> dict:
    return {"below": nested(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize(
    ("attempt", "error", "says"),
    [
        (lambda send: send.enqueue(7), PayloadInvalid, "parameter 'to'"),
        (lambda send: send.enqueue("ada", cc="bob"), PayloadInvalid, "no parameter 'cc'"),
        (lambda send: send.enqueue("x" * 2**20), PayloadInvalid, "the limit is 1,048,576"),
        (lambda send: send.enqueue("ada", weight=float("nan")), PayloadInvalid, "JSON cannot represent"),
        (lambda send: send.enqueue("ada", data=nested(64)), PayloadInvalid, "nested deeper than 64"),
        (lambda send: send.options(after="nobody").enqueue("ada"), UnknownDependency, "'nobody', which does not exist"),
        (lambda send: send.options(id="a", after="a").enqueue("ada"), DependencyCycle, "'a' -> 'a'"),
        (lambda send: send.options(key="kept-key", on_hit="raise").enqueue("ada"), DuplicateKey, "held by job 'kept'"),
    ],
)
async def test_a_refused_enqueue_leaves_everything_as_it_was(app: App, send, attempt, error, says):
    await send.options(id="kept", key="kept-key").enqueue("ada")

    with pytest.raises(error, match=says) as refused:
        await attempt(send)

    assert isinstance(refused.value, QueueError)
    assert [job.id async for job in app.jobs.find()] == ["kept"]


async def test_jobs_that_would_wait_for_each_other_are_refused_together(app: App, send):
    specs = [send.options(id=one, after=other).spec("ada") for one, other in ("ab", "bc", "ca")]

    with pytest.raises(DependencyCycle, match="depend on each other in a cycle"):
        await app.enqueue(specs)
    assert await app.jobs.count() == []


async def test_a_cycle_over_two_enqueues_is_refused_too(app: App, send):
    await send.options(id="a", after="b", allow_missing=True).enqueue("ada")

    with pytest.raises(DependencyCycle):
        await send.options(id="b", after="a").enqueue("ada")


@pytest.mark.parametrize("odd", ["a/b", "../etc", "a:b", "id:event", "ключ", "with space", "x" * 200, "😀" * 200, "\n"])
async def test_ids_may_be_any_text(app: App, send, odd):
    """BR-18."""
    await send.options(id=odd, group=odd, key=odd).enqueue("ada")

    job = await app.jobs.get(odd)
    assert (job.id, job.group, job.key) == (odd, odd, odd)


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\0b", "\ud800", "é" * 201])
def test_ids_have_limits(send, bad):
    """X2."""
    with pytest.raises(InvalidInput, match="job id"):
        send.options(id=bad)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "-1s", "soon"])
def test_a_delay_is_a_duration(send, delay):
    with pytest.raises(InvalidInput, match="delay"):
        send.options(delay=delay)


def test_an_unknown_task_is_said_to_be_unknown(app: App, send):
    with pytest.raises(UnknownTask, match="Did you mean 'send'?"):
        app.find_task("sent")


@pytest.mark.parametrize("url", ["", "jobs.db", "carrier-pigeon://loft", "://"])
async def test_a_url_that_names_no_store_is_refused_at_first_use(url):
    with pytest.raises(QueueError, match="store|URL|scheme"):
        await App(url).jobs.count()


async def test_a_store_whose_driver_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "redis", None)

    with pytest.raises(MissingDriver, match=r"pip install 'redis\[hiredis\]"):
        await App("redis://localhost").jobs.count()


def test_a_slip_in_a_workers_option_is_told(app: App):
    with pytest.raises(InvalidInput, match="no option 'slot'. Did you mean 'slots'"):
        app.worker(slot=3)  # type: ignore[call-arg]
