"""Runs the jobs of a partition again, with an ordinary worker and a queue in memory.

Nothing that the handler does through Millrace leaves the sandbox: jobs that it enqueues are stored in memory and never
run, and listeners and spans are turned off. Its other effects are real; see `app/shadow_mode.py` for the mark by which
it can leave them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from millrace.app.app import App
from millrace.app.shadow_mode import sandboxed, shadow_mode
from millrace.domain.job import Job, Spec
from millrace.spark.drain.app import AppAddress, load
from millrace.spark.shadow.comparing import Comparison, PastRun, compare
from millrace.spark.shadow.inputs import needs_inputs, payloads_with_inputs
from millrace.spark.table import Column, Table
from millrace.store.memory import MemoryStore

QUEUE = "millrace-shadow"  # a queue of its own, so that the worker does not run jobs which handlers enqueue
JOBS_AT_ONCE = 1_000  # the sandbox keeps payloads and results of so many jobs in memory
Row = dict[str, Any]

_PAST_JOB = (
    Column("job", "string", ""),
    Column("seq", "bigint", ""),
    Column("generation", "int", ""),
    Column("finished_at", "timestamp", "when the job finished in the past"),
)
TO_RUN = Table(
    "to_run",
    "jobs to run again, with how they ended",
    (
        *_PAST_JOB,
        Column("completed", "boolean", ""),
        Column("serde", "string", "", nullable=True),
        Column("payload", "binary", "null if neither the lake nor the store has it", nullable=True),
        Column("result", "binary", "", nullable=True),
        Column("headers", "map<string, string>", "", nullable=True),
        Column("error_type", "string", "", nullable=True),
        Column("error_message", "string", "", nullable=True),
        Column("duration_ms", "bigint", "", nullable=True),
    ),
)
COMPARED = Table(
    "compared",
    "one row for each job that a shadow replay has run",
    (
        *_PAST_JOB,
        Column("outcome", "string", "same_result, other_result, now_fails, …"),
        Column("speed", "string", "faster, slower or similar; null unless both runs completed", nullable=True),
        Column("duration_ms_before", "bigint", "duration of the last run in the past", nullable=True),
        Column("duration_ms_after", "bigint", "duration of the run in the sandbox", nullable=True),
        Column("result_before", "string", "null unless the outcomes differ", nullable=True),
        Column("result_after", "string", "", nullable=True),
        Column("error_before", "string", "", nullable=True),
        Column("error_after", "string", "", nullable=True),
    ),
)


class SandboxPlan(msgspec.Struct, frozen=True):
    """What Spark sends to executors: where the app is, the task whose jobs run, and the Spark options that name their
    store, from which results of other jobs are read.
    """

    address: AppAddress
    task: str
    slots: int
    processes: int = 1
    store: Mapping[str, str] | None = None


class RunAgain:
    """The function that Spark calls for each partition of `TO_RUN`. It returns rows of `COMPARED`."""

    def __init__(self, plan: SandboxPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with shadow_mode():  # before the import, so that code at the top of a module sees it
            app = load(self._plan.address, (self._plan.task,))
            for batch in batches:
                for first in range(0, batch.num_rows, JOBS_AT_ONCE):
                    rows = batch.slice(first, JOBS_AT_ONCE).to_pylist()
                    yield pa.RecordBatch.from_pylist(asyncio.run(run_again(app, self._plan, rows)), COMPARED.arrow())


async def run_again(app: App, plan: SandboxPlan, rows: Sequence[Row]) -> list[Row]:
    """Run the jobs once each, and return how the runs compare. Must be called in shadow mode."""
    there = [row for row in rows if row["payload"] is not None]
    incomplete = [row for row in there if needs_inputs(row)]
    completed = await asyncio.to_thread(payloads_with_inputs, incomplete, plan.store, app.serdes)
    to_run = [row for row in there if not needs_inputs(row)]
    to_run += [{**row, "payload": completed[row["job"]]} for row in incomplete if row["job"] in completed]
    ends = await _ends(app, plan, to_run) if to_run else {}
    return [_compared(app, plan, row, ends) for row in rows]


async def _ends(app: App, plan: SandboxPlan, rows: Sequence[Row]) -> dict[str, tuple[Job, int | None]]:
    """Run the jobs in an empty store. Return each job after its run, and the duration of the run."""
    store = MemoryStore()
    with sandboxed(app, store):
        async with app:
            specs = [_spec(app, plan.task, row) for row in rows]
            await store.enqueue(specs)
            worker = app.worker(
                QUEUE,
                tasks=[plan.task],
                slots=plan.slots,
                processes=plan.processes,
                burst=True,
                scheduler=False,
                monitor=False,
            )
            await worker.run()
            jobs = [job for job in await store.get([spec.id for spec in specs]) if job is not None]
            durations = {event.job: event.duration async for event in app.events(follow=False)}
    return {job.id: (job, durations.get(job.id)) for job in jobs}


def _spec(app: App, task: str, row: Row) -> Spec:
    """Return the job for the sandbox: it runs once, with the options that the new version gives to its handler."""
    options = app.find_task(task).options
    return Spec(
        row["job"],
        task,
        QUEUE,
        row["payload"],
        row["serde"],
        headers=dict(row["headers"]) if row["headers"] else None,
        max_attempts=1,
        max_stalls=1,
        timeout=options.timeout,
        lease=options.lease,
        keep_result=None,
    )


def _compared(app: App, plan: SandboxPlan, row: Row, ends: dict[str, tuple[Job, int | None]]) -> Row:
    if row["payload"] is None:
        found = Comparison("no_payload")
    elif needs_inputs(row) and row["job"] not in ends:
        found = Comparison("no_inputs")
    else:
        before = PastRun(row["completed"], row["result"], row["error_type"], row["error_message"], row["duration_ms"])
        job, duration = ends[row["job"]]
        task = app.find_task(plan.task)
        found = compare(before, job, duration, lambda data: task.load_result(data, row["serde"]))
    return {
        **{column.name: row[column.name] for column in _PAST_JOB},
        "duration_ms_before": row["duration_ms"],
        "duration_ms_after": found.duration_ms,
        **{name: value for name, value in msgspec.structs.asdict(found).items() if name != "duration_ms"},
    }
