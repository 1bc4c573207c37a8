"""Chains, groups and chords: one atomic enqueue, with results handed on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace import InvalidInput, JobFailed
from millrace.contrib.celery import AsyncResult, Celery, GroupResult, chain, chord, group, signature
from tests.contrib.celery_modules import first_steps, mailing, pipeline
from tests.contrib.celery_modules.first_steps import add, mul, total
from tests.contrib.celery_modules.pipeline import album, fetch, note, report, report_id, shrink, unkept
from tests.contrib.celery_worker import PATIENCE, working
from tests.contrib.conftest import SERVERS, STORES

OnStore = Callable[[Celery], Celery]


@pytest.fixture
def steps(on_store: OnStore) -> Iterator[Celery]:
    app = on_store(first_steps.app)
    app.set_default()
    with working(app):
        yield app


@pytest.fixture
def pictures(on_store: OnStore) -> Iterator[Celery]:
    pipeline.reports.clear()
    pipeline.ids.clear()
    app = on_store(pipeline.app)
    app.set_default()
    with working(app):
        yield app


def got(result: AsyncResult | GroupResult) -> Any:
    return result.get(timeout=PATIENCE)


@pytest.mark.parametrize("store", [*STORES, *SERVERS], indirect=True)
def test_an_album_is_made_of_pictures_that_are_made_in_parallel(pictures):
    result = pipeline.make_album(["a", "b", "c"], title="summer").delay()

    assert got(result) == {"title": "summer", "pictures": [f"raw {name} at 64" for name in "abc"]}
    assert isinstance(result.parent, GroupResult)
    assert got(result.parent) == [f"raw {name} at 64" for name in "abc"]
    assert result.parent.successful() and result.parent.completed_count() == len(result.parent) == 3


def test_a_chain_passes_each_result_to_the_next_task(steps):
    result = chain(add.s(2, 2), mul.s(8), mul.s(10))()

    assert got(result) == 320
    assert [got(result.parent), got(result.parent.parent)] == [32, 4]
    assert result.parent.children == [result]
    assert got((add.s(2, 2) | mul.s(8) | mul.s(10)).delay()) == 320
    assert got(chain(add.s(4) | mul.s(8)).delay(12)) == 128
    assert ~(add.s(2, 2) | mul.s(4)) == 16
    assert got(chain([add.s(1, 1), add.s(1)]).apply_async()) == 3


def test_an_immutable_signature_gets_no_result(steps):
    assert got(chain(add.s(2, 2), add.si(4, 4), mul.s(2))()) == 16
    assert got((add.s(2, 2) | add.signature((1, 1), immutable=True)).delay()) == 2


def test_a_group_runs_tasks_in_parallel(steps):
    results = group(add.s(number, number) for number in range(5))()

    assert got(results) == results.join() == [0, 2, 4, 6, 8]
    assert results.ready() and results.successful() and not results.failed() and not results.waiting()
    assert [result.id for result in results] == [results[index].id for index in range(5)]
    assert got(group(add.s(1), add.s(2)).delay(10)) == [11, 12]


def test_a_chord_gives_its_body_the_list_of_results(steps):
    assert got(chord(add.s(number, number) for number in range(10))(total.s())) == 90
    assert got(chord([add.s(1, 1), add.s(2, 2)], total.s()).apply_async()) == 6
    assert got((group(add.s(1, 1), add.s(2, 2)) | total.s()).delay()) == 6
    assert got(chord([], total.s()).apply_async()) == 0


def test_flows_can_be_nested(steps):
    inner = group(chain(add.s(1, 1), mul.s(2)), chain(add.s(2, 2), mul.s(2)))

    assert got((inner | total.s() | add.s(100)).delay()) == 112
    assert got((add.s(1, 2) | group(add.s(1), add.s(2)) | total.s()).delay()) == 9
    assert got((group(add.s(1, 1), add.s(2, 2)) | group(total.s(), total.s())).delay()) == [6, 6]
    flat = chord([group(add.s(1, 1), add.s(2, 2)), add.s(3, 3)], first_steps.echo.s())
    deep = chord([add.s(1, 1) | group(add.s(1), add.s(2)), add.s(3, 3)], first_steps.echo.s())
    assert got(flat.delay()) == [[[2, 4, 6]], {}]
    assert got(deep.delay()) == [[[[3, 4], 6]], {}]


def test_results_that_are_none_or_false_are_passed_on(pictures):
    assert got(chain(note.s(None), note.s())()) == ["noted", ["noted", None]]
    assert got(chain(unkept.s(None), note.s())()) == ["noted", None]
    assert got(chain(unkept.s(0), note.s())()) == ["noted", 0]


def test_a_flow_is_enqueued_in_one_step_or_not_at_all(steps):
    with pytest.raises(TypeError):
        chain(add.s(1, 1), add.s(1, 2, 3)).delay()

    assert list(steps.millrace.sync.jobs.find()) == []


def test_what_follows_a_failure_does_not_run(pictures):
    result = chain(fetch.s("missing"), shrink.s(), album.s())()

    with pytest.raises(JobFailed, match="dependency_failed"):
        got(result)
    assert (result.state, result.parent.parent.state) == ("FAILURE", "FAILURE")
    assert "FileNotFoundError" in str(result.parent.parent.get(propagate=False))
    with pytest.raises(JobFailed):
        got(pipeline.make_album(["a", "missing"], "x").delay())


def test_callbacks_run_with_the_result(pictures):
    result = fetch.apply_async(("a",), link=note.s())
    both = fetch.apply_async(("b",), link=[note.s(), note.si("b")])

    assert got(result.children[0]) == ["noted", "raw a"]
    assert [got(child) for child in both.children] == [["noted", "raw b"], ["noted", "b"]]
    linked = fetch.s("c")
    linked.link(shrink.s())
    assert got(linked.delay().children[0]) == "raw c at 100"
    assert got(chain(fetch.s("d"), shrink.s()).apply_async(link=note.s()).children[0]) == ["noted", "raw d at 100"]


def test_error_callbacks_run_with_the_failed_request(pictures):
    failing = fetch.apply_async(("missing",), link_error=[report.s(), report_id.s()])
    wait_until(lambda: pipeline.reports and pipeline.ids)

    assert pipeline.reports == [(fetch.name, "JobFailed", "['missing']")]
    assert pipeline.ids == [failing.id]


def test_error_callbacks_run_when_the_record_of_the_failed_job_is_not_kept(on_store):
    pipeline.reports.clear()
    pipeline.ids.clear()
    app = on_store(pipeline.app)
    app.set_default()
    failing = fetch.apply_async(("missing",), link_error=[report.s(), report_id.s()])
    run = app.millrace.sync.run
    run(app.millrace.worker(max_jobs=1).run(handle_signals=False))
    app.millrace.sync.jobs.delete(failing.id)  # as pruning does
    run(app.millrace.worker(burst=True).run(handle_signals=False))

    assert pipeline.reports == [(fetch.name, "JobFailed", "['missing']")]
    assert pipeline.ids == [failing.id]


def test_the_error_callback_of_a_flow_names_the_task_that_failed(pictures):
    flow = pipeline.make_album(["a", "missing"], "x").on_error(report.s())
    flow.delay()
    wait_until(lambda: pipeline.reports)
    assert pipeline.reports == [(fetch.name, "JobFailed", "['missing']")]

    pipeline.reports.clear()
    chain(fetch.s("missing"), shrink.s()).apply_async(link_error=report.s())
    group([fetch.s("missing"), fetch.s("fine")]).apply_async(link_error=report.s())
    wait_until(lambda: len(pipeline.reports) == 2)
    assert pipeline.reports == [(fetch.name, "JobFailed", "['missing']")] * 2


def test_options_go_where_celery_sends_them(steps):
    chained = chain(add.s(1, 1), add.s(1).set(queue="slow")).apply_async(countdown=3600, task_id="first")
    grouped = group(add.s(1, 1), add.s(2, 2)).apply_async(queue="fast", countdown=3600)
    choral = chord([add.s(1, 1)], total.s()).apply_async(queue="fast", countdown=3600, task_id="body")

    def job(result: AsyncResult) -> tuple[str, int]:
        status = steps.millrace.sync.jobs.get(result.id)
        return status.queue, status.record.spec.delay

    assert (chained.parent.id, choral.id) == ("first", "body")
    assert [job(chained.parent), job(chained)] == [("celery", 3_600_000), ("slow", 0)]
    assert [job(result) for result in grouped] == [("fast", 3_600_000)] * 2
    assert [job(choral.parent[0]), job(choral)] == [("fast", 3_600_000), ("celery", 0)]


def test_revoking_a_group_cancels_its_jobs(steps):
    results = group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=3600)
    results.revoke()

    assert [result.state for result in results] == ["REVOKED", "REVOKED"]
    assert results.ready() and not results.successful()
    results.forget()
    assert [result.state for result in results] == ["PENDING", "PENDING"]


def test_a_request_knows_its_flow(on_store):
    app = Celery("families", broker="memory://", set_as_current=False)

    @app.task(name="families.who", bind=True)
    def who(self, before=None):
        request = self.request
        return [request.id, request.root_id, request.parent_id, request.group]

    with working(on_store(app)):
        result = chain(who.s(), who.s(), group(who.s(), who.s()))()
        first, second = got(result.parent.parent), got(result.parent)
        members = got(result)

    assert first[:3] == [first[0], first[0], None]
    assert second[1:3] == [first[0], first[0]]
    assert [member[1:3] for member in members] == [[first[0], second[0]]] * 2
    assert {member[3] for member in members} == {result.id}


def test_a_signature_can_name_a_task(steps):
    named = signature(add.name, args=(2, 2), countdown=0)

    assert got(named.delay()) == 4
    assert got(steps.signature(add.name, (3,)).delay(4)) == 7
    assert repr(add.s(1, 2) | mul.s(y=3)) == f"{add.name}(1, 2) | {mul.name}(y=3)"
    assert signature(add.s(1)).args == (1,)


def test_flows_can_be_changed_and_read_before_they_are_enqueued(pictures):
    chained = chain(fetch.s("a"), shrink.s()).set(task_id="first").link(note.s())
    choral = chord([fetch.s("a")], album.s()).set(queue="fast").link(note.s())
    grouped = group(fetch.s("a"), fetch.s("b")).set(queue="fast")

    assert [repr(part) for part in (*chained.tasks, *choral.tasks, *grouped.tasks)][-1] == f"{fetch.name}('b')"
    assert (len(grouped), repr(grouped)) == (2, f"group({fetch.name}('a'), {fetch.name}('b'))")
    assert repr(choral) == f"chord(group({fetch.name}('a')), {album.name}())"
    assert got(chained.delay().children[0]) == ["noted", "raw a at 100"]
    assert [signature.name for signature in choral.signatures()] == [fetch.name, album.name]


def test_what_is_not_a_flow_is_refused():
    with pytest.raises(InvalidInput, match="a flow is made of signatures, such as add.s"):
        chain(add.s(1, 1), "mul")
    with pytest.raises(InvalidInput, match="a chord needs a body"):
        chord([add.s(1, 1)]).delay()
    with pytest.raises(InvalidInput, match="a chain needs at least one task"):
        chain().delay()
    with pytest.raises(InvalidInput, match="two tasks of one flow have the id 'a'"):
        group(add.s(1, 1).set(task_id="a"), add.s(1, 1).set(task_id="a")).delay()


def test_eager_flows_run_in_the_callers_process():
    first_steps.app.conf.task_always_eager = mailing.app.conf.task_always_eager = True
    try:
        assert (chain(add.s(1, 2), mul.s(3)) | add.s(1)).delay().get() == 10
        assert chord([add.s(1, 1), add.s(2, 2)], total.s()).delay().get() == 6
        assert (add.s(1, 2) | group(add.s(1), add.s(2)) | total.s()).delay().get() == 9
        failed = chain(first_steps.divide.s(1, 0), add.s(1)).delay()
        assert failed.failed() and isinstance(failed.result, ZeroDivisionError)
        linked = add.apply_async((1, 1), link=mul.s(10))
        assert linked.children[0].get() == 20
        pipeline.reports.clear()
        fetch.s("missing").on_error(report.s()).apply()
        assert pipeline.reports == [(fetch.name, "FileNotFoundError", "['missing']")]
    finally:
        first_steps.app.conf.task_always_eager = mailing.app.conf.task_always_eager = False


def wait_until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)
