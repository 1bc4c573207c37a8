"""The jobs of a flow: their ids, and the headers that connect them with their flow.

The last job has the id of the flow. The others are numbered: `FLOW/1`, `FLOW/2` … The last job has a header with the
number of jobs. So the ids of all jobs follow from one record, and a store needs no index of flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.app.ids import new_token
from millrace.app.payloads.inputs import Shape
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec

FLOW = "millrace-flow"  # of every job: the id of its flow
PARTS = "millrace-flow-parts"  # of the last job: the number of jobs
ENQUEUED_BY = "millrace-enqueued-by"  # of a job that a handler has enqueued with its end: the id of the handler's job
TAILS = "millrace-flow-result"  # of the last job, if the result of the flow is that of several jobs: their numbers


def flow_of(spec: Spec) -> str | None:
    """Return the id of the flow that the job is a part of, or None."""
    return None if spec.headers is None else spec.headers.get(FLOW)


def enqueued_by(spec: Spec, job_id: str) -> Spec:
    """Return the spec with the id of the job whose handler enqueues it."""
    return msgspec.structs.replace(spec, headers={**(spec.headers or {}), ENQUEUED_BY: job_id})


def size_of(spec: Spec) -> int | None:
    """Return the number of jobs of the flow whose last job this is; None for any other job."""
    return None if spec.headers is None or PARTS not in spec.headers else int(spec.headers[PARTS])


def member_id(flow: str, number: int, total: int) -> str:
    return flow if number == total else f"{flow}/{number}"


def member_ids(last: Spec) -> list[str]:
    """Return the ids of all jobs of the flow, in the order in which they were added. `last` is its last job.

    Raises InvalidInput if the job is not the last one of a flow.
    """
    total = size_of(last)
    if total is None:
        flow = flow_of(last)
        hint = "It was enqueued alone." if flow is None else f"It is a part of flow {flow!r}."
        raise InvalidInput(f"{last.id!r} is the id of a job, not of a flow. {hint}")
    return [member_id(last.id, number, total) for number in range(1, total + 1)]


def tails_of(last: Spec) -> Shape | None:
    """Return the numbers of the jobs whose results are the result of the flow: a list of numbers and lists.

    A tuple is `{"tuple": […]}`. Return None if the result of the flow is that of its last job.
    """
    text = (last.headers or {}).get(TAILS)
    return None if text is None else msgspec.json.decode(text)


def as_members(specs: Sequence[Spec], flow: str, tails: Any, *, named: bool) -> list[Spec]:
    """Return the specs as jobs of a flow: with the ids and headers of its jobs. `tails` is what `tails_of` returns.

    With `named`, the caller has chosen the id of the flow, so that each enqueue needs tokens of its own.
    """
    total = len(specs)
    ids = {spec.id: member_id(flow, number, total) for number, spec in enumerate(specs, 1)}
    made: list[Spec] = []
    for spec in specs:
        headers = {**(spec.headers or {}), FLOW: flow}
        if len(made) == total - 1:
            headers[PARTS] = str(total)
            if tails is not None:
                headers[TAILS] = msgspec.json.encode(tails).decode()
        made.append(
            msgspec.structs.replace(
                spec,
                id=ids[spec.id],
                token=new_token() if named else ids[spec.id],
                after=tuple([ids.get(parent, parent) for parent in spec.after]),
                headers=headers,
            )
        )
    return made
