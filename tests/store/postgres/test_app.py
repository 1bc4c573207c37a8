"""An app on PostgreSQL: the same program as on SQLite, with another URL."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from millrace import App
from millrace.domain.job import State
from tests.servers.postgres import url_for


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
async def test_one_url_moves_a_program_from_a_file_to_a_server(tmp_path: Path, place: str) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db" if place == "sqlite" else url_for(tmp_path))

    @app.task(queue="mail", max_attempts=5, timeout=30)
    async def send_email(to: str, template: str = "welcome") -> str:
        return f"{template} sent to {to}"

    async with app:
        worker = app.worker(["mail"], slots=4)
        async with worker:
            job = await send_email.enqueue(to="ada@example.com")
            text = await send_email.options(wait=30).call(to="bob@example.com", template="hi")
            later = await send_email.options(id="mail-7", delay="50ms", priority=5, group="ada", after=[job]).enqueue(
                to="eve@example.com"
            )
            assert await app.jobs.result(later, wait="30s") == "welcome sent to eve@example.com"
        history = await app.jobs.history("mail-7")

    assert text == "hi sent to bob@example.com"
    assert [event.kind.value for event in history][-2:] == ["claimed", "completed"]


async def test_a_jobs_effects_and_its_end_commit_together(tmp_path: Path) -> None:
    app = App(url_for(tmp_path))

    @app.task()
    async def pay(amount: int) -> None: ...

    async with app:
        connection = await asyncpg.connect((await app.connected()).address.dsn)  # type: ignore[attr-defined]
        async with connection.transaction():
            kept = await pay.options(within=connection).enqueue(amount=1)
        undone = connection.transaction()
        await undone.start()
        lost = await pay.options(within=connection).enqueue(amount=2)
        await undone.rollback()
        await connection.close()
        found = await (await app.connected()).get([kept.id, lost.id])

    assert [None if job is None else job.state for job in found] == [State.WAITING, None]
