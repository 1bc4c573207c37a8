"""What can be done to many jobs at once: which of them a filter alone means, and which answers mean that it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from millrace.domain.request import Query
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
