"""Who holds what: running jobs by worker, as the store knows it. A worker's own word is as old as its last beat."""

from __future__ import annotations

from millrace.runtime.app import App

MOST_RUNNING = 100_000


async def held_by_worker(app: App) -> dict[str, list[str]]:
    held: dict[str, list[str]] = {}
    async for job in app.jobs.find(state="running", limit=MOST_RUNNING):
        held.setdefault(job.worker or "", []).append(job.id)
    return held
