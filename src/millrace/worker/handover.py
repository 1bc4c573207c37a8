"""Completes payloads with the results of parents, before the handlers of such jobs start.

All jobs that start in the same iteration of the event loop, such as those of one claim, share one read of the store.
Jobs without inputs never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from millrace.app.payloads.inputs import filled, inputs_of, parents_of_inputs
from millrace.app.payloads.serde import Serdes, TypedSerde
from millrace.domain.errors import PayloadInvalid
from millrace.domain.job import FAILED, FINISHED, SECOND, Job, Spec, State
from millrace.domain.outcome import Outcome, Released
from millrace.store.protocol import Store
from millrace.worker.process.remote import OutcomeError
from millrace.worker.run import PayloadMismatch, Run

AT_ONCE = 500  # parents per call of the store
LATER = 5 * SECOND


class ParentsUnknown(OutcomeError):
    """The results of the parents cannot be read now, so the handler has not run. The job is released."""

    def outcome(self) -> Outcome:
        return Released(LATER)


class Handover:
    """Passes the results of parents to the runs of one worker."""

    def __init__(self, store: Store, serdes: Serdes) -> None:
        self._store = store
        self._serdes = serdes
        self._reading: asyncio.Task[dict[str, Job | None]] | None = None
        self._wanted: dict[str, None] = {}

    async def complete(self, run: Run) -> None:
        """Add the results to the payload of the run's job.

        Raises ParentsUnknown if the store is not available or a parent runs again, PayloadMismatch if a result is gone.
        """
        ids = parents_of_inputs(run.job.spec)
        if self._reading is None:
            self._wanted = {}
            self._reading = asyncio.get_running_loop().create_task(self._read(self._wanted))
        self._wanted.update(dict.fromkeys(ids))
        try:
            parents = await asyncio.shield(self._reading)  # another run may wait for it too
            failed = await self._failed(run.job.spec, [job_id for job_id in ids if parents[job_id] is None])
        except Exception as error:
            raise ParentsUnknown(f"the results of its parents cannot be read: {error}") from error
        run.job.spec = with_results(run.job.spec, parents, self._serdes, failed)

    async def _failed(self, spec: Spec, gone: Sequence[str]) -> set[str]:
        """Return which of these parents, whose records are removed, were dead or cancelled. Their history knows."""
        if spec.on_dependency != "run":
            return set()
        histories = [await self._store.history(job_id) for job_id in gone]
        return {job_id for job_id, events in zip(gone, histories, strict=True) if events and events[-1].state in FAILED}

    async def _read(self, wanted: Mapping[str, None]) -> dict[str, Job | None]:
        self._reading = None  # runs that start from now on make another read
        ids = list(wanted)
        found: dict[str, Job | None] = {}
        for start in range(0, len(ids), AT_ONCE):
            part = ids[start : start + AT_ONCE]
            found.update(zip(part, await self._store.get(part), strict=True))
        return found


def with_results(
    spec: Spec, parents: Mapping[str, Job | None], serdes: Serdes, failed: Collection[str] = frozenset()
) -> Spec:
    """Return the spec with a payload that includes the results of these parents.

    `failed` are parents whose records are removed, and that were dead or cancelled.
    """
    try:
        serde = serdes.get(spec.payload_serde)
        if isinstance(serde, TypedSerde):
            raise PayloadInvalid(f"serde {serde.name!r} stores messages, to which no result can be added")
        values: dict[str, Any] = serde.decode(spec.payload)

        def result_at(position: int) -> Any:
            parent = spec.after[position]
            return None if parent in failed else _result(parents[parent], parent, serdes)

        values.update({name: filled(shape, result_at) for name, shape in inputs_of(spec).items()})
        return msgspec.structs.replace(spec, payload=serde.encode(values))
    except OutcomeError:
        raise
    except Exception as error:  # a custom serde may raise anything
        raise PayloadMismatch(f"the results of the parents do not fit the payload: {error}") from error


def _result(parent: Job | None, parent_id: str, serdes: Serdes) -> Any:
    """Return the decoded result of a parent; None if it is dead or cancelled, and the job runs nevertheless."""
    if parent is None or (parent.state is State.COMPLETED and parent.result_expired):
        raise PayloadInvalid(
            f"the result of parent {parent_id!r} is no longer kept. Replay the parent, with its children"
        )
    if parent.state not in FINISHED:
        raise ParentsUnknown(f"parent {parent.id!r} runs again")
    if parent.state is not State.COMPLETED or parent.result is None:
        return None
    return serdes.decode(parent.result, parent.spec.result_serde)
