"""Bad input is refused before any I/O, with the same error on every store. A refused call changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, PayloadInvalid, QueueError
from millrace.domain.job import State
from millrace.domain.request import Query
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, found, put, show, take

BAD = {
    "empty id": {"id": ""},
    "long id": {"id": "x" * 201},
    "id with too many bytes": {"id": "😀" * 200 + "é"},
    "id with NUL": {"id": "a\0b"},
    "id with NUL beyond ascii": {"id": "ä\0b"},
    "half a surrogate pair": {"id": "\ud800"},
    "id that is no text": {"id": 7},
    "empty task": {"task": ""},
    "task with a blank": {"task": "send mail"},
    "task with a newline": {"task": "send\n"},
    "long task": {"task": "x" * 129},
    "queue with a slash": {"queue": "a/b"},
    "queue beyond ascii": {"queue": "münchen"},
    "priority below": {"priority": -1},
    "priority above": {"priority": 16},
    "priority that is no integer": {"priority": 1.5},
    "negative delay": {"delay": -1},
    "delay of a thousand years": {"delay": 1000 * 365 * 24 * 3600},
    "no time to live": {"expires": 0},
    "empty group": {"group": ""},
    "long key": {"key": "x" * 201},
    "window of no length": {"key": "k", "scope": "window", "window": 0},
    "empty parent": {"after": ("",)},
    "too many parents": {"after": tuple(map(str, range(10_001)))},
    "no attempts": {"max_attempts": 0},
    "no stalls": {"max_stalls": 0},
    "no timeout": {"timeout": 0},
    "no lease": {"lease": 0},
    "negative keep_result": {"keep_result": -1},
    "bad hook": {"on_dead_letter": "no such name!"},
    "long token": {"token": "x" * 201},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_bad_spec_is_refused_and_leaves_nothing(store: Store, clock: VirtualClock, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await store.enqueue([a_spec(), a_spec(**bad)])

    assert await found(store, archived=None) == []
    assert (await store.events(None, 10)).events == ()


@pytest.mark.parametrize(
    ("meaningless", "advice"),
    [
        ({"scope": "window", "window": 60}, "scope='window' has an effect only with a key.*Pass key"),
        ({"scope": "retained"}, "scope='retained' has an effect only with a key.*Pass key"),
        ({"window": 60}, "window=60000 has an effect only with a key.*Pass key"),
        ({"on_hit": "replace"}, "on_hit='replace' has an effect only with a key.*Pass key"),
        ({"key": "k", "scope": "window"}, "how long the key is held.*Pass window"),
        ({"key": "k", "window": 60}, "scope is 'live'.*Pass scope='window'"),
        ({"key": "k", "on_hit": "extend"}, "on_hit='extend'.*scope is 'live'.*Pass scope='window'"),
        ({"key": "k", "on_hit": "extend", "scope": "retained"}, "on_hit='extend'.*scope is 'retained'"),
    ],
)
async def test_an_option_about_keys_that_would_do_nothing_is_refused(
    store: Store, clock: VirtualClock, meaningless: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InvalidInput, match=advice):
        await store.enqueue([a_spec(), a_spec(**meaningless)])

    assert await found(store) == []


async def test_a_payload_of_a_mebibyte_is_taken_and_no_more(store: Store, clock: VirtualClock) -> None:
    """The store accepts a payload of exactly 1 MiB and refuses one that is a byte larger."""
    largest = await put(store, payload=b"x" * (1 << 20))
    with pytest.raises(PayloadInvalid, match="1,048,577"):
        await store.enqueue([a_spec(payload=b"x" * ((1 << 20) + 1))])

    assert await found(store) == [largest.id]
    assert len((await take(store)).payload) == 1 << 20


@pytest.mark.parametrize(
    "fine",
    [
        {"id": "x" * 200},
        {"id": "😀" * 200},
        {"task": "x" * 128, "queue": "A-Z_a.9"},
        {"priority": 15},
        {"after": (), "max_attempts": 1, "max_stalls": 1, "expires": 0.001, "timeout": None, "lease": 0.001},
        {"max_attempts": None, "max_stalls": None, "keep_result": 0},
        {"payload": b""},
    ],
    ids=str,
)
async def test_what_is_just_allowed_is_taken(store: Store, clock: VirtualClock, fine: dict[str, Any]) -> None:
    spec = await put(store, **fine)
    job = await take(store, queue=spec.queue)

    assert job.spec == spec
    await complete(store, job)


async def test_a_settle_that_carries_a_bad_job_changes_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store)
    with pytest.raises(InvalidInput):
        await store.settle([(job.lease, Change.completed(jobs=(a_spec(), a_spec(task=""))))])

    assert (await show(store, job)).state is State.RUNNING
    assert await found(store) == [job.id]
    await complete(store, job)


async def test_every_refusal_is_an_error_of_the_queue(store: Store, clock: VirtualClock) -> None:
    """Every refusal raises a subclass of QueueError."""
    with pytest.raises(QueueError):
        await store.enqueue([a_spec(priority=99)])
    with pytest.raises(QueueError):
        await store.enqueue([a_spec(after=("nobody",))])


async def test_a_refusal_says_what_to_do(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInput, match="letters, digits, dots"):
        await store.enqueue([a_spec(queue="no such name!")])


@pytest.mark.parametrize(
    "words",
    [{"key": "k", "scope": "ever"}, {"key": "k", "on_hit": "drop"}, {"on_dependency": "x"}, {"on_timeout": "x"}],
)
async def test_a_word_that_is_no_choice_is_refused(store: Store, clock: VirtualClock, words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is not known; use"):
        await store.enqueue([a_spec(), a_spec(**words)])

    assert await found(store) == []


async def test_finding_by_a_word_that_is_no_state_is_refused(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInput, match="Known are: active"):
        await store.find(Query(state="asleep"))


async def test_reading_the_limits_of_a_task_makes_none(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "quiet", {})
    await put(store, task="quiet")

    assert (await take(store, tasks=["quiet"])).task == "quiet"
