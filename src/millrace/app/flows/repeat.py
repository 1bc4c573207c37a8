"""An enqueue of a flow with the id of a flow that exists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.app.flows.handle import FlowHandle, short_records
from millrace.app.flows.members import flow_of, size_of
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.domain.rules.check import check_id

if TYPE_CHECKING:
    from millrace.app.app import App

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
            raise InvalidInput(
                f"job {job.id!r} exists and is no part of flow {flow!r}, whose jobs have such ids. Nothing was "
                "enqueued. Enqueue the flow with another id"
            )
    last = records[-1]
    if last is None:
        return None
    _check_size(last, specs)
    replayed = await FlowHandle(app, flow).replay()
    if replayed:
        [again] = await short_records(await app.connected(), [flow])
        last = again or last
    return Enqueued("duplicate", flow, last.seq, last.generation, last.state, by="id")


def _check_size(last: Job, specs: Sequence[Spec]) -> None:
    size = size_of(last.spec)
    if size != len(specs):
        raise InvalidInput(
            f"flow {last.id!r} exists with {size} jobs, but this flow has {len(specs)}. Nothing was enqueued. "
            "Enqueue a changed flow with another id"
        )
