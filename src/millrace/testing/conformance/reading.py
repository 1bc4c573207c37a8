"""Reading: get, find, count, position, partitions, scan, and the list of recently changed jobs."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from millrace.app.recently_changed import recently_changed
from millrace.domain.errors import InvalidInput
from millrace.domain.job import State
from millrace.domain.request import JobSelection, Partition, Query, QueueCounts
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    control,
    count,
    found,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    retry,
    show,
    take,
    take_ids,
)


async def one_of_each(store: Store) -> dict[str, str]:
    """Create one job in each displayed state. Returns the job ids by state."""
    made = {"completed": await put_completed(store), "dead": await put_dead(store)}
    made["cancelled"] = await put_cancelled(store)
    made["retrying"] = await put(store)
    await retry(store, await take(store), delay=60)
    made["running"] = await put(store)
    await take(store)
    made["ready"] = await put(store)
    made["scheduled"] = await put(store, delay=60)
    made["blocked"] = await put(store, after=(made["ready"].id,))
    return {word: spec.id for word, spec in made.items()}


async def test_find_by_tag_returns_the_jobs_that_have_it(store: Store, clock: VirtualClock) -> None:
    """Every page of a search by tag has only jobs with this tag, and together the pages have all of them, in order."""
    tagged = [await put_completed(store, b"1", tags=("eu",)), await put(store, tags=("import", "eu"))]
    await put(store)
    tagged.append(await put(store, tags=("eu",), group="g", queue="mail"))
    await put(store, tags=("us",))

    ids = [spec.id for spec in tagged]
    for newest_first in (False, True):
        for limit in (1, 2, 100):
            query = Query(tag="eu", archived=None, newest_first=newest_first, limit=limit)
            found: list[str] = []
            while True:
                page = await store.find(query)
                assert len(page.jobs) <= limit
                found += [job.id for job in page.jobs]
                if page.cursor is None:
                    break
                query = replace(query, cursor=page.cursor)
            assert found == (ids[::-1] if newest_first else ids)
    [job] = (await store.find(Query(tag="eu", queue="mail"))).jobs
    assert job.spec.tags == ("eu",)


async def test_get_answers_per_id_in_order(store: Store, clock: VirtualClock) -> None:
    first, second = await put(store), await put(store)
    jobs = await store.get([second.id, "nobody", first.id, second.id])

    assert [job and job.id for job in jobs] == [second.id, None, first.id, second.id]
    assert await store.get([]) == []


async def test_what_reading_hands_out_is_the_callers_own_copy(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await show(store, spec)
    job.state, job.failures = State.DEAD, 99
    page = await store.find(Query())
    page.jobs[0].state = State.DEAD

    assert ((await show(store, spec)).state, (await show(store, spec)).failures) == (State.WAITING, 0)


async def test_jobs_are_found_by_the_word_people_see(store: Store, clock: VirtualClock) -> None:
    """Find accepts every displayed state, and `waiting` for all waiting jobs."""
    ids = await one_of_each(store)

    for word, job_id in ids.items():
        assert await found(store, state=word) == [job_id], word
    waiting = {ids[word] for word in ("ready", "scheduled", "retrying", "blocked")}
    assert set(await found(store, state="waiting")) == waiting


@pytest.mark.parametrize(
    ("alias", "word"),
    [
        ("pending", "waiting"),
        ("queued", "ready"),
        ("active", "running"),
        ("processing", "running"),
        ("delayed", "scheduled"),
        ("failing", "retrying"),
        ("failed", "dead"),
        ("dlq", "dead"),
    ],
)
async def test_the_words_of_the_designs_are_understood(
    store: Store, clock: VirtualClock, alias: str, word: str
) -> None:
    await one_of_each(store)

    assert await found(store, state=alias) == await found(store, state=word) != []


async def test_jobs_are_found_by_what_they_are(store: Store, clock: VirtualClock) -> None:
    a = await put(store, queue="a", task="x", group="g")
    b = await put(store, queue="b", task="x", key="k")
    clock.advance(10)
    c = await put(store, queue="a", task="y")

    assert await found(store) == [a.id, b.id, c.id]
    assert await found(store, queue="a") == [a.id, c.id]
    assert await found(store, task="x") == [a.id, b.id]
    assert await found(store, group="g") == [a.id]
    assert await found(store, key="k") == [b.id]
    assert await found(store, queue="a", task="y") == [c.id]
    assert await found(store, queue="nowhere") == []
    assert await found(store, enqueued_from=clock()) == [c.id]
    assert await found(store, enqueued_to=clock()) == [a.id, b.id]
    assert await found(store, newest_first=True) == [c.id, b.id, a.id]


async def test_jobs_are_found_by_when_they_finished(store: Store, clock: VirtualClock) -> None:
    """Find can filter by finish time. Unfinished and replayed jobs have no finish time and are not found."""
    late = await put(store, queue="slow", key="k", group="g")
    done = await put_completed(store)
    again = await put_dead(store, task="play")
    clock.advance(10)
    second = clock()
    dead = await put_dead(store)
    clock.advance(10)
    third = clock()
    await store.cancel([late.id])
    await store.replay([again.id])
    running = await take(store)
    await put(store)

    assert running.id == again.id
    assert await found(store, finished_from=0) == [late.id, done.id, dead.id]
    assert await found(store, finished_from=0, newest_first=True) == [dead.id, done.id, late.id]
    assert await found(store, finished_from=0, limit=1) == [late.id, done.id, dead.id]
    assert await found(store, finished_from=second) == [late.id, dead.id]
    assert await found(store, finished_to=second) == [done.id]
    assert await found(store, finished_from=second, finished_to=third) == [dead.id]
    assert await found(store, finished_from=third + 1) == []
    for filters in ({"queue": "slow"}, {"key": "k"}, {"group": "g"}, {"state": "cancelled"}, {"enqueued_to": second}):
        assert await found(store, finished_from=second, **filters) == [late.id], filters
        assert await found(store, finished_to=second, **filters | {"task": "play"}) == [], filters
    for state in ("waiting", "running", "ready"):
        assert await found(store, finished_from=0, state=state) == []
    assert await found(store, finished_from=0, task="play") == []


async def test_what_runs_of_a_task_is_found_in_every_queue(store: Store, clock: VirtualClock) -> None:
    """Find by task and state `running` returns the running jobs of the task from all queues."""
    for queue, task in (("a", "x"), ("b", "x"), ("a", "y"), ("c", "x")):
        await store.enqueue([a_spec(id=f"{queue}-{task}", queue=queue, task=task)])
    await put(store, queue="a", task="x", delay=60)
    await take_ids(store, queues=("a", "b", "c"))
    await complete(store, await show(store, "c-x"))

    assert sorted(await found(store, task="x", state="running")) == ["a-x", "b-x"]
    assert len((await store.find(Query(task="x", state="running", limit=1))).jobs) == 1


async def test_filters_and_order_go_together(store: Store, clock: VirtualClock) -> None:
    """Every combination of queue, task and state returns the right jobs, oldest first or newest first."""
    made: dict[tuple[str, str, str], list[str]] = {}
    for _ in range(2):
        for queue in ("default", "mail"):
            for task in ("work", "play"):
                done = await put_completed(store, queue=queue, task=task)
                dead = await put_dead(store, queue=queue, task=task)
                for state, spec in (("completed", done), ("dead", dead)):
                    made.setdefault((queue, task, state), []).append(spec.id)
    for queue in ("default", "mail"):
        for task in ("work", "play"):
            made[queue, task, "waiting"] = [(await put(store, queue=queue, task=task)).id for _ in range(2)]

    for (queue, task, state), ids in made.items():
        for limit in (1, 100):
            wanted = {"queue": queue, "task": task, "state": state, "limit": limit}
            assert await found(store, **wanted) == ids
            assert await found(store, **wanted, newest_first=True) == ids[::-1]


async def test_groups_and_keys_are_paged_in_both_directions(store: Store, clock: VirtualClock) -> None:
    made: dict[tuple[str, str], list[str]] = {}
    for _ in range(3):
        for name in ("a", "b"):
            spec = await put_completed(store, group=name, key=name)
            made.setdefault(("group", name), []).append(spec.id)
            made.setdefault(("key", name), []).append(spec.id)

    for (field, name), ids in made.items():
        for limit in (1, 2, 100):
            assert await found(store, **{field: name}, limit=limit) == ids
            assert await found(store, **{field: name}, limit=limit, newest_first=True) == ids[::-1]


async def test_pages_go_on_where_the_last_one_ended(store: Store, clock: VirtualClock) -> None:
    asked = specs(7)
    await store.enqueue(asked)
    ids = [spec.id for spec in asked]

    assert await found(store, limit=3) == ids
    assert await found(store, limit=3, newest_first=True) == ids[::-1]
    assert await found(store, limit=3, queue="default", state="ready") == ids
    first = await store.find(Query(limit=3))
    assert (len(first.jobs), first.cursor is not None) == (3, True)


async def test_paging_is_not_upset_by_jobs_that_come_and_go(store: Store, clock: VirtualClock) -> None:
    asked = specs(6)
    await store.enqueue(asked)
    page = await store.find(Query(limit=3))
    await store.obliterate("default", 2)
    later = await put(store)
    rest = await store.find(Query(cursor=page.cursor))

    assert [job.id for job in rest.jobs] == [*(spec.id for spec in asked[3:]), later.id]


async def test_find_refuses_a_cursor_that_is_none(store: Store, clock: VirtualClock) -> None:
    await put(store)
    for text in ("abc", "-1", "1.5"):
        with pytest.raises(InvalidInput, match="cursor"):
            await store.find(Query(cursor=text))


async def test_counts_equal_a_recount(store: Store, clock: VirtualClock) -> None:
    await one_of_each(store)
    clock.advance(5)

    assert await count(store) == QueueCounts(
        "default",
        waiting=4,
        running=1,
        completed=1,
        dead=1,
        cancelled=1,
        blocked=1,
        scheduled=1,
        retrying=1,
        ready=1,
        oldest_ready=seconds(5),
        processed=1,
        died=1,
    )


async def test_counts_follow_the_clock(store: Store, clock: VirtualClock) -> None:
    await put(store, delay=10)
    before = await count(store)
    clock.advance(10)
    after = await count(store)

    assert (before.scheduled, before.ready, before.oldest_ready) == (1, 0, None)
    assert (after.scheduled, after.ready, after.oldest_ready) == (0, 1, 0)


async def test_counts_are_per_queue(store: Store, clock: VirtualClock) -> None:
    await store.enqueue([a_spec(queue="b"), a_spec(queue="a"), a_spec(queue="b")])

    assert [(c.queue, c.waiting) for c in await store.count() if c.waiting] == [("a", 1), ("b", 2)]


async def test_position_is_how_many_run_before_it(store: Store, clock: VirtualClock) -> None:
    asked = [await put(store, priority=p) for p in (0, 5, 0, 5)]
    await put(store, queue="other", priority=15)

    assert [await store.position(spec.id) for spec in asked] == [2, 0, 3, 1]


async def test_position_in_a_group_is_the_place_in_its_line(store: Store, clock: VirtualClock) -> None:
    asked = [await put(store, group="g") for _ in range(3)]
    await put(store, group="other")
    assert [await store.position(spec.id) for spec in asked] == [0, 1, 2]

    await take(store)
    assert [await store.position(spec.id) for spec in asked[1:]] == [1, 2]


async def test_what_does_not_wait_has_no_position(store: Store, clock: VirtualClock) -> None:
    done = await put_completed(store)
    running = await put(store)
    await take(store)

    assert [await store.position(job) for job in (done.id, running.id, "nobody")] == [None, None, None]


async def test_jobs_that_are_not_due_are_not_ahead_of_one_that_is(store: Store, clock: VirtualClock) -> None:
    await put(store, delay=60, priority=15)
    ready = await put(store)

    assert await store.position(ready.id) == 0


async def test_partitions_together_hold_every_job_once(store: Store, clock: VirtualClock) -> None:
    """Scanning all partitions returns every job exactly once, for any number of partitions."""
    asked = [a_spec(queue=f"q-{n % 3}") for n in range(101)]
    await store.enqueue(asked)
    await complete(store, await take(store, queue="q-0"))

    for n in (1, 4, 7, 1_000):
        parts = await store.partitions(n)
        assert 1 <= len(parts) <= n
        seen = [job.id for part in parts async for batch in store.scan(part, batch=10) for job in batch]
        assert sorted(seen) == sorted(spec.id for spec in asked)


async def test_a_scan_comes_in_batches_no_larger_than_asked(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(25))
    [part] = await store.partitions(1)

    assert [len(batch) async for batch in store.scan(part, batch=10)] == [10, 10, 5]


async def test_an_empty_store_has_nothing_to_scan(store: Store, clock: VirtualClock) -> None:
    assert [job for part in await store.partitions(4) async for batch in store.scan(part) for job in batch] == []
    assert (await store.find(Query())).jobs == ()


async def test_a_scan_returns_the_jobs_that_a_query_selects(store: Store, clock: VirtualClock) -> None:
    """The query selects as in `find`, but its limit, cursor and order do not count. Archived jobs belong to it, too, if
    it says so.
    """
    ids = await one_of_each(store)
    await put_dead(store, queue="mail", task="play", group="g", key="k")
    hidden = await put_dead(store, queue="mail", task="send")
    await store.archive([hidden.id])
    clock.advance(10)
    await put_completed(store, queue="mail", task="send")
    now = clock()
    queries: list[dict[str, Any]] = [
        *({"state": word} for word in (*ids, "waiting", "failed")),
        *({"queue": "mail"}, {"task": "send"}, {"queue": "mail", "task": "send", "state": "dead"}, {"queue": "none"}),
        *({"group": "g"}, {"key": "k"}, {"enqueued_from": now}, {"finished_from": 0}, {"finished_to": now}, {}),
        *({"state": "dead", "finished_from": 0}, {"state": "running", "queue": "default"}),
    ]

    for query in queries:
        for archived in (False, True, None):
            wanted = sorted(await found(store, archived=archived, **query))
            selection = JobSelection(Query(archived=archived, limit=1, cursor="0", newest_first=True, **query))
            seen = [
                job.id
                for part in await store.partitions(3)
                async for batch in store.scan(part, 2, selection)
                for job in batch
            ]
            assert sorted(seen) == wanted, (query, archived)


async def test_a_scan_returns_payloads_and_results_if_asked(store: Store, clock: VirtualClock) -> None:
    """What is not asked for may be missing; what is asked for is there, also if it is large."""
    payload, result = b'"' + b"p" * 100_000 + b'"', b'"' + b"r" * 100_000 + b'"'
    spec = await put_completed(store, result, payload=payload)
    [part] = await store.partitions(1)
    for payloads in (False, True):
        for results in (False, True):
            [[job]] = [batch async for batch in store.scan(part, 10, JobSelection(None, payloads, results))]

            assert (job.id, job.state, job.spec.queue) == (spec.id, State.COMPLETED, spec.queue)
            assert job.spec.payload == payload or not payloads
            assert job.result == result or not results


async def test_many_partitions_hold_every_job_once(store: Store, clock: VirtualClock) -> None:
    asked = [a_spec(id=str(uuid4()) if n % 2 else f"job {n}") for n in range(60)]
    await store.enqueue(asked)
    parts = await store.partitions(200)
    assert len({part.token for part in parts}) == len(parts) <= 200
    seen = [job.id for part in parts async for batch in store.scan(part) for job in batch]

    assert sorted(seen) == sorted(spec.id for spec in asked)


async def test_a_scan_skips_what_was_removed_meanwhile(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(10))
    [part] = await store.partitions(1)
    seen = []
    async for batch in store.scan(part, batch=4):
        seen += [job.id for job in batch]
        if len(seen) == 4:
            await store.obliterate("default", 6)

    left = await found(store)
    assert len(left) == 4
    assert set(seen[4:]) == set(left) - set(seen[:4])


async def test_a_partition_that_is_none_is_refused(store: Store, clock: VirtualClock) -> None:
    for token in ("", "abc", "1", "1-x", "x-1"):
        with pytest.raises(InvalidInput, match="partition"):
            _ = [batch async for batch in store.scan(Partition(token))]


async def test_archived_jobs_are_left_out_unless_asked_for(store: Store, clock: VirtualClock) -> None:
    """Find returns archived jobs only with archived=True or archived=None."""
    shown, hidden = await put_completed(store), await put_completed(store)
    await store.archive([hidden.id])

    assert await found(store) == [shown.id]
    assert await found(store, archived=True) == [hidden.id]
    assert await found(store, archived=None) == [shown.id, hidden.id]


async def test_a_paused_queue_is_shown_as_such(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await control(store, paused=True)

    assert ((await count(store)).paused, (await count(store)).ready) == (True, 1)


# by last change


async def changed(store: Store, limit: int = 100, *, queue: str | None = None, state: str | None = None) -> list[str]:
    """Return the ids of the matching jobs, most recently changed first, read page by page."""
    ids: list[str] = []
    query: Query | None = Query(queue=queue, state=state, limit=limit, archived=None)
    while query is not None:
        page = await recently_changed(store, query)
        assert len(page.jobs) <= limit
        ids += [job.id for job in page.jobs]
        query = None if page.cursor is None else replace(query, cursor=page.cursor)
    return ids


async def test_jobs_are_listed_by_their_last_change_newest_first(store: Store, clock: VirtualClock) -> None:
    a, b, c = await put(store, queue="q"), await put(store), await put(store, queue="q")
    assert await changed(store) == [c.id, b.id, a.id]

    clock.advance(1)
    await complete(store, await take(store, queue="q"))
    assert await changed(store) == [a.id, c.id, b.id]
    await store.cancel([b.id])
    assert await changed(store) == [b.id, a.id, c.id]
    await store.archive([a.id])
    late = await put(store)
    assert await changed(store) == [late.id, a.id, b.id, c.id]
    assert await changed(store, queue="q") == [a.id, c.id]
    assert await changed(store, state="cancelled") == [b.id]
    for limit in (1, 2, 3, 4):
        assert await changed(store, limit) == [late.id, a.id, b.id, c.id]


async def test_pages_by_last_change_go_on_while_jobs_change(store: Store, clock: VirtualClock) -> None:
    """A job that changes while a reader pages through the list does not appear on later pages."""
    ids = [(await put(store)).id for _ in range(6)]
    first = await recently_changed(store, Query(limit=2))
    await store.cancel([ids[0]])
    await put(store)
    second = await recently_changed(store, Query(limit=9, cursor=first.cursor))

    assert [job.id for job in first.jobs] == [ids[5], ids[4]]
    assert [job.id for job in second.jobs] == [ids[3], ids[2], ids[1]]
    with pytest.raises(InvalidInput, match="cursor"):
        await recently_changed(store, Query(cursor="x"))
