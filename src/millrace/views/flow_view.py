"""Flows as JSON for the command line and the web API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from millrace.app.flows.handle import FlowStatus
from millrace.domain.job import Job
from millrace.views.job_view import JobSummary

LISTED_FAILURES = 100


class FlowView(msgspec.Struct):
    """How far a flow is."""

    id: str
    state: Literal["running", "completed", "failed"]
    total: int
    done: int
    states: Annotated[dict[str, int], Meta(description="The number of jobs in each state")]
    failed: Annotated[list[JobSummary], Meta(description="Jobs that died or were cancelled; the first 100")]


def flow_view(status: FlowStatus, summary: Callable[[Job], JobSummary]) -> FlowView:
    """Return the flow. `summary` returns a job as an entry of a list."""
    return FlowView(
        id=status.id,
        state=status.state,
        total=status.total,
        done=status.done,
        states=status.states,
        failed=[summary(job.record) for job in status.failed[:LISTED_FAILURES]],
    )


def flow_progress(status: FlowStatus) -> str:
    """Return the progress of a flow as text: `412 of 1,000 done, 2 failed`."""
    failed = f", {len(status.failed):,} failed" if status.failed else ""
    return f"{status.done:,} of {status.total:,} done{failed}"
