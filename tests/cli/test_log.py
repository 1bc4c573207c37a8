"""`millrace log`: the lines that a handler wrote, while it runs and afterwards."""

from __future__ import annotations

import asyncio

from millrace import App, Context
from tests.cli.stage import Stage


async def _worked(url: str) -> None:
    async with App(url) as app:

        @app.task(keep_log=True)
        async def resize(ctx: Context, width: int) -> None:
            ctx.log("resizing", width=width)
            ctx.log.warning("slow\tand\nlong")

        await resize.options(id="photo").enqueue(200)
        await resize.options(id="waiting", delay="1d").enqueue(200)
        await app.worker(burst=True).run(handle_signals=False)


def test_the_lines_are_shown_as_a_table_and_as_json(cli: Stage) -> None:
    asyncio.run(_worked(cli.url))

    first, second = cli("log", "photo").out.splitlines()
    assert first.split("\t")[1:] == ["attempt 1", "INFO    ", "resizing width=200"]
    assert second.split("\t")[1:] == ["attempt 1", "WARNING ", "slow\\tand\\nlong"]
    lines = cli("log", "photo", "--json").json
    assert [(line["level"], line["text"], line["fields"]) for line in lines] == [
        ("INFO", "resizing", {"width": 200}),
        ("WARNING", "slow\tand\nlong", {}),
    ]
    assert "resizing width=200" in cli("status", "photo").out
    assert cli("status", "photo", "--json").json["log"] == lines


def test_a_finished_job_is_followed_to_its_end(cli: Stage) -> None:
    asyncio.run(_worked(cli.url))
    assert len(cli("log", "photo", "--follow", "--json").out.splitlines()) == 2


def test_a_job_without_lines_or_without_a_record_says_so(cli: Stage) -> None:
    asyncio.run(_worked(cli.url))
    ran = cli("log", "waiting")
    assert ran.out == "" and "keep_log=True" in ran.err
    assert cli("log", "waiting", "--json").json == []
    assert cli.refused("log", "missing").code == 1
