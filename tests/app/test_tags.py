"""Tags: words by which people find jobs."""

from __future__ import annotations

import pytest

from millrace import App, Context, InvalidInput, testing
from millrace.testing import on_memory
from tests.narrowing import the


def shop() -> App:
    app = App("memory://")

    @app.task(tags=["mail"])
    async def send(to: str) -> str:
        return to

    @app.task
    async def tags(ctx: Context) -> list[str]:
        return list(ctx.tags)

    return app


async def test_tags_of_the_task_apply_unless_the_caller_sets_others() -> None:
    app = shop()
    send = app.tasks["send"]
    plain = await send.enqueue("a")
    other = await send.options(tags=["import-7", "mail", "mail"]).enqueue("b")
    assert the(await plain.status()).tags == ("mail",)
    assert the(await other.status()).tags == ("import-7", "mail")
    assert [job.id async for job in app.jobs.find(tag="import-7")] == [other.id]
    assert [job.id async for job in app.jobs.find(tag="mail", newest_first=True)] == [other.id, plain.id]


def test_the_blocking_api_finds_jobs_by_tag() -> None:
    app = shop()
    job = app.tasks["send"].sync.enqueue("a")
    assert [one.tags for one in app.sync.jobs.find(tag="mail")] == [("mail",)]
    assert list(app.sync.jobs.find(tag="other")) == []
    assert the(job.status()).tags == ("mail",)


async def test_a_handler_reads_the_tags_of_its_job() -> None:
    assert await testing.run(shop().tasks["tags"].options(tags=["eu"])) == ["eu"]


async def test_finished_jobs_are_purged_by_tag() -> None:
    app = shop()
    with on_memory(app) as mill:
        await app.tasks["send"].options(tags=["old"]).enqueue("a")
        await app.tasks["send"].enqueue("b")
        await mill.drain()
        mill.assert_enqueued("send", tags=["old"], count=1)
        assert await app.jobs.purge(tag="old", dry_run=True) == 1
        assert await app.jobs.purge(tag="old") == 1
        assert [job.tags async for job in app.jobs.find()] == [("mail",)]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("mail", "tags takes a list of words"),
        ([1], "tags"),
        (["two words"], "'two words' is not allowed: use 1 to 64 characters without spaces and commas"),
        (["a,b"], "is not allowed"),
        ([""], "is not allowed"),
        (["x" * 65], "is not allowed"),
        ([f"t{n}" for n in range(21)], "at most 20 tags, not 21"),
    ],
)
def test_tags_that_are_no_short_words_are_refused_when_they_are_declared(tags: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        shop().tasks["send"].options(tags=tags)
    with pytest.raises(InvalidInput, match=message):
        App("memory://").task(name="send", tags=tags)(lambda to: None)


async def test_a_search_for_something_that_is_no_tag_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not allowed"):
        [job async for job in shop().jobs.find(tag="a b")]
