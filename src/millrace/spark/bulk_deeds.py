"""What can be done to many jobs at once: which of them it can be done to, and which answers mean that it was done."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.domain.job import FINISHED, Job, State
from millrace.domain.request import Archived, Cancelled, Replayed
from millrace.store.protocol import Store

CHANGED = "changed"  # not touched: something happened to the job after it was selected
_FINISHED = tuple(sorted(state.value for state in FINISHED))


class Deed(msgspec.Struct, frozen=True):
    """`usual` are the states that are meant when a predicate does not speak of the state."""

    name: str
    past: str
    states: tuple[str, ...]
    usual: tuple[str, ...]
    done: frozenset[str]
    archived: bool | None = False  # None: archived ones too, if the predicate speaks of them
    also_running: bool = False

    async def ask(self, store: Store, ids: Sequence[str]) -> Sequence[str]:
        match self.name:
            case "replay":
                return await store.replay(ids)
            case "cancel":
                return await store.cancel(ids, "request" if self.also_running else "refuse")
            case _:
                return await store.archive(ids, self.name == "archive")

    def landed(self, job: Job, finished: int | None) -> str | None:
        """The answer that must have been given, when the job shows that the deed was done but no answer was kept.

        A job that had finished at another time was brought back since. By whomever: nobody wants it back twice.
        """
        match self.name:
            case "replay":
                return Replayed.REPLAYED.value if job.finished_at != finished else None
            case "cancel":
                return Cancelled.CANCELLED.value if job.state is State.CANCELLED else None
            case _:
                return Archived.DONE.value if job.archived is (self.name == "archive") else None


_CANCELLED = frozenset({Cancelled.CANCELLED.value, Cancelled.REQUESTED.value})
_ARCHIVED = frozenset({Archived.DONE.value, Archived.UNCHANGED.value})

DEEDS = {
    deed.name: deed
    for deed in (
        Deed("replay", "replayed", _FINISHED, ("dead",), frozenset({Replayed.REPLAYED.value}), archived=None),
        Deed("cancel", "cancelled", ("waiting",), ("waiting",), _CANCELLED),
        Deed("archive", "archived", _FINISHED, _FINISHED, _ARCHIVED),
        Deed("unarchive", "unarchived", _FINISHED, _FINISHED, _ARCHIVED, archived=True),
    )
}


def deed_named(operation: str, also_running: bool = False) -> Deed:
    deed = DEEDS.get(operation)
    if deed is None:
        raise InvalidInput(f"there is no operation {operation!r}. {meant(operation, DEEDS)}")
    if not also_running:
        return deed
    if operation != "cancel":
        raise InvalidInput(f"also_running is for cancel: running jobs cannot be {deed.past}")
    states = ("waiting", "running")
    return msgspec.structs.replace(deed, states=states, usual=states, also_running=True)
