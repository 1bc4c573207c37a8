"""Bulk actions of the command line, the web API and Spark: cancel, replay, archive, unarchive and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from millrace.app.app import App
from millrace.domain.job import LIVE, Job
from millrace.domain.request import Query, matches
from millrace.store.protocol import Store

BATCH = 500
CHANGED = "changed"  # the answer of a job that was left alone, because it changed after it was found
_ENDED = ("completed", "dead", "cancelled")
Within = Callable[[Awaitable[Sequence[str]], int], Awaitable[Sequence[str]]]


@dataclass(frozen=True)
class BulkAction:
    """One bulk action, such as cancel.

    `states` are the states in which a job can be changed. `usual` are the states that are searched if the filter names
    no state. `done` are the answers of the store that mean success.
    """

    verb: str
    past: str
    states: tuple[str, ...]
    usual: tuple[str, ...]
    done: frozenset[str]
    archived: bool | None = False  # which jobs a filter finds; None: archived ones only if the filter asks for them
    also_running: bool = False
    children: bool = True

    @property
    def ended(self) -> bool:
        """Whether a filter that names no state finds only jobs that have ended."""
        return set(self.usual) <= set(_ENDED)

    def queries(self, query: Query) -> list[Query]:
        if query.state is not None:
            return [query]
        return [msgspec.structs.replace(query, state=state) for state in self.usual]

    async def run(self, store: Store, ids: Sequence[str]) -> Sequence[str]:
        """Run the action on up to `BATCH` jobs, and return the store's answer for each job, in order."""
        match self.verb:
            case "cancel":
                return await store.cancel(ids, "request" if self.also_running else "refuse")
            case "replay":
                return await store.replay(ids, self.children)
            case "delete":
                return await store.delete(ids)
            case _:
                return await store.archive(ids, self.verb == "archive")


_ARCHIVED = frozenset({"done", "unchanged"})
ACTIONS = {
    action.verb: action
    for action in (
        BulkAction("cancel", "cancelled", ("waiting",), ("waiting",), frozenset({"cancelled", "requested"})),
        BulkAction("replay", "replayed", _ENDED, ("dead",), frozenset({"replayed"}), archived=None),
        BulkAction("archive", "archived", _ENDED, _ENDED, _ARCHIVED),
        BulkAction("unarchive", "unarchived", _ENDED, _ENDED, _ARCHIVED, archived=True),
        BulkAction("delete", "deleted", _ENDED, _ENDED, frozenset({"deleted"}), archived=None),
    )
}


def bulk_action(verb: str, *, also_running: bool = False, children: bool = True) -> BulkAction:
    """Return the action with the name `verb`. Raises KeyError if there is none.

    `also_running` applies only to cancel, and `children` only to replay.
    """
    action = ACTIONS[verb]
    if verb == "cancel" and also_running:
        states = ("waiting", "running")
        return replace(action, states=states, usual=states, also_running=True)
    return action if children else replace(action, children=False)


class MatchedJobs:
    """The jobs of a bulk action, given by id or found by a filter.

    A job may change after a filter has found it and the user has confirmed the number of jobs. Therefore jobs found by
    a filter are read again before the action. A job that was replayed or has ended since then, or that no longer
    matches the filter, is skipped. A change between this read and the action is not noticed, because stores have no
    conditional actions.
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

    async def act(
        self, app: App, action: BulkAction, within: Within | None = None
    ) -> AsyncIterator[list[tuple[str, str]]]:
        """Run the action on chunks of jobs, and yield a list of (id, answer) for each chunk.

        The action on each chunk is awaited through `within`, for example to limit its time.
        """
        ids, store = self.ids, await app.connected()
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            left = await self._left_alone(app, part, action) if self._queries else {}
            rest = [job_id for job_id in part if job_id not in left]
            answers: dict[str, str] = {}
            if rest:
                running = action.run(store, rest)
                given = await (running if within is None else within(running, len(rest)))
                answers = dict(zip(rest, map(str, given), strict=True))
            yield [(job_id, left.get(job_id) or answers[job_id]) for job_id in part]

    async def _left_alone(self, app: App, ids: list[str], action: BulkAction) -> dict[str, str]:
        store = await app.connected()
        now = await store.now()
        left: dict[str, str] = {}
        for job_id, job in zip(ids, await store.get(ids), strict=True):
            if job is None:
                left[job_id] = "not_found"
            elif action.verb == "replay" and self._is_back(job):
                left[job_id] = "replayed"
            elif _mark(job) != self._seen[job_id] or not any(matches(job, query, now) for query in self._queries):
                left[job_id] = CHANGED
        return left

    def _is_back(self, job: Job) -> bool:
        """Return whether the job was replayed since it was found, for example together with its parent."""
        _, replays, *_ = self._seen[job.id] or (0, job.replays)
        return job.state in LIVE and replays == job.replays - 1


def _mark(job: Job) -> tuple[object, ...]:
    """Return a value that changes when the job ends or is replayed, and at no other time."""
    return job.generation, job.replays, job.auto_retries, job.finished_at
