"""What had already happened when a reply was lost: claims are known by their id, ends by the lease they name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.job import Job, Lease
from millrace.domain.request import Receipt
from millrace.store.postgres.record import KIND_NUMBER, job_from_row
from millrace.store.postgres.session import Before, Session

_ENDS = [KIND_NUMBER[kind] for kind in Kind if kind not in (Kind.CLAIMED, Kind.RECLAIMED)]


def claimed_before(session: Session, claim_id: str) -> Callable[[], Awaitable[Before[list[Job]] | None]]:
    async def look() -> Before[list[Job]] | None:
        rows = await session.after_call(claim_id, "held_by_claim", f"{claim_id}.")
        return Before([job_from_row(row) for row in rows]) if rows else None

    return look


def name_of(items: Sequence[tuple[Lease, Change]]) -> str:
    """What a settle is called: by the first of its leases."""
    return min(items, key=lambda item: item[0].seq)[0].id


def settled_before(
    session: Session, items: Sequence[tuple[Lease, Change]]
) -> Callable[[], Awaitable[Before[list[Receipt]] | None]]:
    """A batch happens entirely or not at all, so one end that is told of under its lease speaks for all."""

    async def look() -> Before[list[Receipt]] | None:
        seqs, ids = [lease.seq for lease, _ in items], [lease.id for lease, _ in items]
        rows = await session.after_call(name_of(items), "ended_under", seqs, ids, _ENDS, KIND_NUMBER[Kind.CANCELLED])
        ended = {row[0]: row[1] for row in rows}
        if not ended:
            return None
        cancelling = [change.verb.value in ("retry", "snooze", "release") for _, change in items]
        return Before(
            [
                Receipt.LOST
                if lease.id not in ended
                else Receipt.CANCELLING
                if ended[lease.id] and back
                else Receipt.OK
                for (lease, _), back in zip(items, cancelling, strict=True)
            ]
        )

    return look
