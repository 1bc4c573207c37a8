"""assert_enqueued and its kin: which jobs they mean, and how they say that there are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from millrace import App, Context, InvalidInput, UnknownTask
from millrace.testing import Harness, including, on_memory

app = App("memory://")


@dataclass
class Address:
    city: str
    lines: list[str]


@app.task(queue="mail")
async def send(to: str, copies: int = 1) -> None: ...


@app.task
def ship(ctx: Context, address: Address, at: datetime | None = None) -> None: ...


@app.task
def move(queue: str, priority: int) -> None: ...


@app.task
def anything(**fields: int) -> None: ...


@pytest.fixture
def mill() -> Iterator[Harness]:
    with on_memory(app) as harness:
        yield harness


async def test_what_is_not_said_does_not_matter(mill: Harness):
    sent = await send.enqueue("ada", copies=3)

    assert mill.assert_enqueued(send).id == sent.id
    assert mill.assert_enqueued(send, to="ada").id == sent.id
    assert mill.assert_enqueued(copies=3, queue="mail").id == sent.id
    assert mill.assert_enqueued("send", to="ada", copies=3, count=1).id == sent.id
    mill.refute_enqueued(send, to="bob")
    mill.refute_enqueued(send, to="ada", copies=1)
    mill.refute_enqueued(ship)


async def test_a_default_that_was_not_written_counts(mill: Harness):
    job = await send.enqueue("ada")

    mill.assert_enqueued(send, copies=1)
    assert mill.args(job) == {"to": "ada", "copies": 1}


async def test_arguments_are_compared_as_the_handler_gets_them(mill: Harness):
    at = datetime(2030, 1, 1, tzinfo=UTC)
    await ship.enqueue(Address("London", ["12 St James's Square"]), at=at)

    mill.assert_enqueued(ship, address=Address("London", ["12 St James's Square"]), at=at)
    mill.assert_enqueued(ship, address=including(city="London"))
    mill.refute_enqueued(ship, address=including(city="Paris"))
    mill.refute_enqueued(ship, address=including(country="England"))
    mill.refute_enqueued(ship, at=at + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("ada@example.com", "ada"),
        (ANY, None),
        (str, int),
        (re.compile("@example"), re.compile("^example")),
        (lambda to: to.endswith(".com"), lambda to: to.endswith(".org")),
        (str.islower, str.isupper),
    ],
)
async def test_a_value_may_be_a_type_a_pattern_or_a_question(mill: Harness, good: object, bad: object):
    await send.enqueue("ada@example.com")

    mill.assert_enqueued(send, to=good)
    mill.refute_enqueued(send, to=bad)
    with pytest.raises(AssertionError, match="to = "):
        mill.assert_enqueued(send, to=bad)


async def test_a_question_that_cannot_be_asked_is_not_answered_with_yes(mill: Harness):
    await ship.enqueue(Address("London", []))

    mill.refute_enqueued(ship, at=lambda at: at.year > 2000)


async def test_options_and_facts_can_be_asked_for(mill: Harness):
    first = await send.enqueue("ada")
    await send.options(
        id="mail-7", queue="slow", delay="10m", priority=5, group="g", key="k", headers={"a": "b"}, after=first
    ).enqueue("bob")

    for said in (
        {"id": "mail-7"},
        {"queue": "slow"},
        {"delay": "10m"},
        {"delay": 600},
        {"delay": timedelta(minutes=10)},
        {"priority": 5},
        {"group": "g"},
        {"key": "k"},
        {"headers": {"a": "b"}},
        {"headers": including(a="b")},
        {"after": first},
        {"after": [first.id]},
        {"state": "blocked"},
        {"priority": lambda priority: priority > 4},
    ):
        assert mill.assert_enqueued(send, count=1, **said).id == "mail-7", said

    assert len(mill.all_enqueued(send, state="waiting")) == 2
    await mill.drain()
    assert mill.all_enqueued(send, state="queued") == []
    assert [job.id for job in mill.all_enqueued(send, state="completed")] == [first.id]
    assert [job.id for job in mill.all_enqueued(send, state="delayed")] == ["mail-7"]


async def test_all_enqueued_is_in_order_and_includes_what_handlers_enqueued(mill: Harness):
    @app.task
    async def fan_out(ctx: Context) -> None:
        for name in ("ada", "bob"):
            ctx.enqueue(send, name)

    await fan_out.enqueue()
    await mill.drain()

    assert [job.task for job in mill.all_enqueued()] == ["fan_out", "send", "send"]
    assert [mill.args(job)["to"] for job in mill.all_enqueued(send)] == ["ada", "bob"]


async def test_names_that_are_options_and_parameters_at_once_must_be_told_apart(mill: Harness):
    await move.enqueue("north", 7)

    with pytest.raises(InvalidInput, match=r"args=\{'priority': …\}"):
        mill.assert_enqueued(move, priority=7)
    mill.assert_enqueued(move, args={"queue": "north", "priority": 7})
    mill.assert_enqueued(move, args={"queue": "north"}, queue="default", priority=0)
    mill.refute_enqueued(move, args={}, priority=7)


async def test_a_name_that_can_never_match_is_refused(mill: Harness):
    with pytest.raises(InvalidInput, match="no parameter 'cc'.*copies, to"):
        mill.refute_enqueued(send, cc="ada")
    with pytest.raises(UnknownTask, match="'send'"):
        mill.refute_enqueued("sned")
    with pytest.raises(InvalidInput, match="refute_enqueued"):
        mill.assert_enqueued(send, count=0)


async def test_any_name_may_be_right_for_a_handler_that_takes_any(mill: Harness):
    await anything.enqueue(a=1, b=2)

    mill.assert_enqueued(anything, a=1)
    mill.refute_enqueued(anything, c=1)


# ── what is said when it is not there ─────────────────────────────────────────────────────────


def said(error: pytest.ExceptionInfo[AssertionError], *ids: str) -> str:
    text = str(error.value)
    for number, job_id in enumerate(ids, start=1):
        text = text.replace(job_id, f"job-{number}")
    return text


async def test_the_difference_to_the_nearest_jobs_is_shown(mill: Harness):
    far = await send.options(queue="slow").enqueue("bob")
    near = await send.enqueue("ada", copies=2)

    with pytest.raises(AssertionError) as error:
        mill.assert_enqueued(send, to="ada", copies=1, queue="mail")

    assert (
        said(error, far.id, near.id)
        == """\
there is no job of task 'send' with
    to = 'ada'
    copies = 1
    queue = 'mail'
2 other jobs of this task, closest first (- expected, + enqueued):
  send job-2 on queue 'mail', ready
    - copies = 1
    + copies = 2
  send job-1 on queue 'slow', ready
    - to = 'ada'
    + to = 'bob'
    - queue = 'mail'
    + queue = 'slow'"""
    )


async def test_long_values_are_compared_line_by_line(mill: Harness):
    lines = [f"line number {n} of an address" for n in range(6)]
    await ship.enqueue(Address("London", lines))

    with pytest.raises(AssertionError) as error:
        mill.assert_enqueued(ship, address=Address("London", [*lines[:5], "another line"]))

    text = str(error.value)
    assert re.search(r"^ +- .*'another line'", text, re.MULTILINE)
    assert re.search(r"^ +\+ .*'line number 5 of an address'", text, re.MULTILINE)


async def test_no_job_of_that_task_says_what_there_is(mill: Harness):
    with pytest.raises(AssertionError, match="nothing was enqueued at all"):
        mill.assert_enqueued(send)

    await send.enqueue_many([{"to": "ada"}] * 3)
    with pytest.raises(AssertionError, match=r"no job of task 'ship'\nenqueued were: 3 × send$"):
        mill.assert_enqueued(ship)


async def test_many_others_are_not_all_shown(mill: Harness):
    await send.enqueue_many([{"to": "ada"}] * 30)

    with pytest.raises(AssertionError, match=r"30 other jobs of this task, closest first(.|\n)* and 25 more"):
        mill.assert_enqueued(send, to="bob")
    with pytest.raises(AssertionError, match=r"expected no job(.|\n)*found 30:(.|\n)* and 25 more"):
        mill.refute_enqueued(send)


async def test_a_wrong_number_shows_what_was_found(mill: Harness):
    await send.enqueue("ada")
    await send.enqueue("ada", copies=2)

    with pytest.raises(AssertionError) as error:
        mill.assert_enqueued(send, to="ada", count=3)

    assert "expected exactly 3 times a job of task 'send' with\n    to = 'ada'\nfound 2:" in str(error.value)
    assert "(to='ada', copies=2)" in str(error.value)


async def test_jobs_of_tasks_that_this_app_lacks_are_compared_as_plain_data(mill: Harness):
    with on_memory(App("memory://")) as other:
        elsewhere = App(other.store)

        @elsewhere.task
        async def foreign(name: str) -> None: ...

        await foreign.enqueue("ada")

        other.assert_enqueued("foreign", name="ada")
        other.refute_enqueued("foreign", name="bob")


async def test_the_jobs_of_a_batch_task_are_asked_for_by_their_item():
    batching = App("memory://")

    @batching.batch_task
    async def index(documents: list[int]) -> None: ...

    with on_memory(batching) as mill:
        job = await index.enqueue(3)
        assert mill.assert_enqueued(index, item=3).id == job.id
        mill.refute_enqueued(index, item=4)
        with pytest.raises(InvalidInput, match="has no parameter 'documents'.*Its parameters are: item"):
            mill.assert_enqueued(index, documents=3)
