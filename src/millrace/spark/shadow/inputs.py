"""The arguments of past jobs that are results of other jobs (`app/payloads/inputs.py`).

Their payloads lack these arguments, so a job runs again only if its parents' results are known: if the store still has
the records of the job and of its parents, with the results that the parents had when the job last started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.app.payloads.inputs import INPUTS, parents_of_inputs
from millrace.app.payloads.serde import Serdes
from millrace.domain.job import Job
from millrace.spark.lake.feed import store_url
from millrace.spark.open import OpenedStore, opened
from millrace.worker.handover import with_results
from millrace.worker.process.remote import OutcomeError

IDS_AT_ONCE = 500
Row = Mapping[str, Any]


def needs_inputs(row: Row) -> bool:
    return INPUTS in (row["headers"] or {})


def payloads_with_inputs(rows: Sequence[Row], store: Mapping[str, str] | None, serdes: Serdes) -> dict[str, bytes]:
    """Return the complete payloads of the jobs whose parents' results are known, by job. `rows` are jobs that need
    inputs, and `store` has the Spark options that name their store.
    """
    if not rows or store is None:
        return {}
    generations = {row["job"]: row["generation"] for row in rows}
    with opened(store_url(store), reads=True) as found:
        jobs = [job for job in _get(found, list(generations)) if job.generation == generations[job.id]]
        wanted = dict.fromkeys(parent for job in jobs for parent in parents_of_inputs(job.spec))
        parents = {job.id: job for job in _get(found, list(wanted))}
    payloads: dict[str, bytes] = {}
    for job in jobs:
        used = {parent: _as_used_by(job, parents.get(parent)) for parent in parents_of_inputs(job.spec)}
        try:
            payloads[job.id] = with_results(job.spec, used, serdes).payload
        except OutcomeError:  # a result is gone, or a parent runs again
            continue
    return payloads


def _as_used_by(job: Job, parent: Job | None) -> Job | None:
    """Return the parent if its result is the one that the last run of `job` got, otherwise None: it has run again."""
    if parent is None or parent.finished_at is None or job.started_at is None:
        return None
    return parent if parent.finished_at <= job.started_at else None


def _get(found: OpenedStore, ids: Sequence[str]) -> list[Job]:
    jobs: list[Job] = []
    for first in range(0, len(ids), IDS_AT_ONCE):
        part = found.run(found.store.get(ids[first : first + IDS_AT_ONCE]))
        jobs += [job for job in part if job is not None]
    return jobs
