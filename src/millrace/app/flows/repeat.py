"""An enqueue of a flow with the id of a flow that exists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.app.flows.handle import FlowHandle, short_records
from millrace.app.flows.members import flow_of, size_of
from millrace.app.format import plural
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.domain.rules.check import check_id

if TYPE_CHECKING:
    from millrace.app.app import App

NOTHING = "Nothing was enqueued"
_LIKE_A_PART = re.compile(r".*/[0-9]+", re.DOTALL)


def check_flow_id(flow: str) -> None:
    """Raise InvalidInput if a flow cannot have this id."""
    check_id("flow id", flow)
    if _LIKE_A_PART.fullmatch(flow):
        raise InvalidInput(
            f"flow id {flow!r} ends in a slash and a number, like the ids of the parts of a flow. "
            f"Choose another id, such as {'-'.join(flow.rsplit('/', 1))!r}"
        )


async def repeated(app: App, flow: str, specs: Sequence[Spec]) -> Enqueued | None:
    """Return the answer of an enqueue if the flow with this id exists, and replay its jobs that failed. Otherwise None.

    The flow exists if its last job does. Its parts may have been removed by retention, so that an enqueue of all specs
    would run them again. Raises InvalidInput if other jobs have the ids of these specs.
    """
    records = await short_records(await app.connected(), [spec.id for spec in specs])
    for job in records:
        if job is not None and flow_of(job.spec) != flow:
            raise _no_part(job, flow)
    last = records[-1]
    if last is None:
        return None
    if size_of(last.spec) != len(specs):
        raise _other_size(last, len(specs))
    replayed = await FlowHandle(app, flow).replay()
    if replayed:
        [again] = await short_records(await app.connected(), [flow])
        last = again or last
    return Enqueued("duplicate", flow, last.seq, last.generation, last.state, by="id")


async def refuse_other_flow(app: App, flow: str, answers: Sequence[Enqueued]) -> None:
    """Raise InvalidInput if other jobs with these ids were enqueued after `repeated` had found none.

    Each enqueue is one step, so either all jobs of this flow were stored, or its last job is a duplicate. Then the
    other jobs are duplicates too, except those that the other flow does not have. They are cancelled.
    """
    if answers[-1].status == "queued":
        return
    store = await app.connected()
    [last] = await short_records(store, [flow])
    if last is None or size_of(last.spec) == len(answers):
        return
    extra = [answer.id for answer in answers if answer.status == "queued"]
    if extra:
        await store.cancel(extra[::-1], "request")  # children first, as in `FlowHandle.cancel`
    effect = f"Of this flow, {plural(len(extra), 'job')} were stored and then cancelled" if extra else NOTHING
    raise _no_part(last, flow, effect) if flow_of(last.spec) != flow else _other_size(last, len(answers), effect)


def _no_part(job: Job, flow: str, effect: str = NOTHING) -> InvalidInput:
    return InvalidInput(
        f"job {job.id!r} exists and is no part of flow {flow!r}, whose jobs have such ids. {effect}. Enqueue the flow "
        "with another id"
    )


def _other_size(last: Job, size: int, effect: str = NOTHING) -> InvalidInput:
    return InvalidInput(
        f"flow {last.id!r} exists with {size_of(last.spec)} jobs, but this flow has {size}. {effect}. Enqueue a "
        "changed flow with another id"
    )
