"""Transactional completion: a handler's own writes and the end of its job, in one commit.

The handler completes its job on its own connection. Once it commits, the job is completed and its lease is gone, so
whatever the worker would still write about the run is refused by the fence. When it does not commit, the lease
stands, and the run ends as a failure like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, LeaseLost
from millrace.domain.job import Lease
from millrace.domain.outcome import Failure, Raised
from millrace.domain.request import Receipt
from millrace.runtime.hold import Abort

if TYPE_CHECKING:
    from millrace.runtime.run import Run
    from millrace.store.protocol import Within

NOT_COMMITTED = Raised(
    Failure(
        "NotCommitted",
        "the handler called ctx.complete(…, within=…) and returned, but that transaction was not committed: "
        "it was rolled back, or is still open. Nothing of it has happened",
    )
)


async def complete(run: object, value: Any, connection: object) -> None:
    with _completing(run, value, connection) as (within, item, again):
        [receipt] = await within.settle([item])
        _refuse_lost(receipt, item[0], again)


def complete_sync(run: object, value: Any, connection: object) -> None:
    with _completing(run, value, connection) as (within, item, again):
        [receipt] = within.settle_now([item])
        _refuse_lost(receipt, item[0], again)


@contextmanager
def _completing(run: object, value: Any, connection: object) -> Iterator[tuple[Within, tuple[Lease, Change], bool]]:
    """From here on a lost lease is no reason to abort the handler: it may well be its own doing."""
    run = _as_run(run)
    if run.why is Abort.LOST:
        raise LeaseLost(run.job.id)
    result = run.task.dump_result(value, run.job.spec.serde)
    duration = max(0, int((run.clock() - run.started) * 1000))
    change = Change.completed(result, duration=duration, jobs=tuple(run.children or ()))
    before, run.completing = run.completing, True
    try:
        yield run.task.join(connection), (run.lease, change), before
    except BaseException:
        run.completing = before
        raise
    run.value = value


def _as_run(run: object) -> Run:
    from millrace.runtime.run import Run

    if not isinstance(run, Run):
        raise InvalidInput(
            "ctx.complete works where the handler runs in the worker itself; a child process returns its result instead"
        )
    return run


def _refuse_lost(receipt: Receipt, lease: Lease, again: bool) -> None:
    if receipt is Receipt.LOST:
        error = LeaseLost(lease.job)
        if again:
            error.add_note(
                "This run has called ctx.complete before: when that was committed, the job is completed already."
            )
        raise error
