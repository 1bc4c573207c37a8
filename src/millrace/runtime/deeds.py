"""What can be done to many jobs at once: which of them a filter alone means, and which answers mean that it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from millrace.domain.job import Job
from millrace.domain.request import Query, matches
from millrace.runtime.app import App

BATCH = 500
Ask = Callable[[App, Sequence[str]], Awaitable[Sequence[str]]]
_ENDED = ("completed", "dead", "cancelled")


@dataclass(frozen=True)
class Deed:
    verb: str
    past: str
    states: tuple[str, ...]
    done: frozenset[str]
    ask: Ask
    archived: bool | None = False

    def queries(self, query: Query) -> list[Query]:
        """A filter without a state is about the states that the deed is for."""
        if query.state is not None:
            return [query]
        return [msgspec.structs.replace(query, state=state) for state in self.states]


class Found:
    """Jobs to act on: by id, or as a filter saw them. Those are looked at again right before the deed.

    Between the count that somebody agreed to and the deed, another may have done the same: a job that was replayed, ran
    and ended meanwhile is not the one that was seen. No store takes a condition with a deed, so this makes the time in
    between short (one batch), and does not close it.
    """

    def __init__(self, ids: Iterable[str] = (), queries: Sequence[Query] = ()) -> None:
        self._queries = queries
        self._seen: dict[str, tuple[object, ...]] = dict.fromkeys(ids, ())

    def see(self, job: Job) -> None:
        self._seen.setdefault(job.id, _mark(job))

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def ids(self) -> list[str]:
        return list(self._seen)

    async def act(self, app: App, deed: Deed) -> AsyncIterator[list[tuple[str, str]]]:
        """The answers by id, batch by batch; "changed" is the answer of a job that was left alone."""
        ids = self.ids
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            left = await self._left_alone(app, part) if self._queries else {}
            rest = [job_id for job_id in part if job_id not in left]
            answers = dict(zip(rest, map(str, await deed.ask(app, rest)), strict=True)) if rest else {}
            yield [(job_id, left.get(job_id) or answers[job_id]) for job_id in part]

    async def _left_alone(self, app: App, ids: list[str]) -> dict[str, str]:
        now = await (await app.connected()).now()
        left: dict[str, str] = {}
        for job_id, job in zip(ids, await app.jobs.get(ids), strict=True):
            if job is None:
                left[job_id] = "not_found"
            elif _mark(job) != self._seen[job_id] or not any(matches(job, query, now) for query in self._queries):
                left[job_id] = "changed"
        return left


def _mark(job: Job) -> tuple[object, ...]:
    """Another after each end and each replay, but the same while a job waits, runs and is tried again."""
    return job.generation, job.replays, job.auto_retries, job.finished_at


def deed_of(verb: str, *, also_running: bool = False) -> Deed:
    """The deed of that name; KeyError when there is none."""
    return _cancel(also_running) if verb == "cancel" else _OTHERS[verb]


def _cancel(also_running: bool) -> Deed:
    async def ask(app: App, ids: Sequence[str]) -> Sequence[str]:
        return await app.jobs.cancel(ids, running="request" if also_running else "refuse")

    states = ("waiting", "running") if also_running else ("waiting",)
    return Deed("cancel", "cancelled", states, frozenset({"cancelled", "requested"}), ask)


async def _replay(app: App, ids: Sequence[str]) -> Sequence[str]:
    return await app.jobs.replay(ids)


async def _archive(app: App, ids: Sequence[str]) -> Sequence[str]:
    return await app.jobs.archive(ids)


async def _unarchive(app: App, ids: Sequence[str]) -> Sequence[str]:
    return await app.jobs.unarchive(ids)


_OTHERS = {
    "replay": Deed("replay", "replayed", ("dead",), frozenset({"replayed"}), _replay),
    "archive": Deed("archive", "archived", _ENDED, frozenset({"done", "unchanged"}), _archive),
    "unarchive": Deed("unarchive", "unarchived", _ENDED, frozenset({"done", "unchanged"}), _unarchive, archived=True),
}
