"""Reads the records of a store for `millrace move`, in pages whose size is limited.

The size of a job is known only when it is read, and its payload, result and log may have a megabyte each. So a store is
asked for a few records at a time, and a page for one import ends when it has enough bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from millrace.domain.export import Exported, ExportedJob, ExportPage
from millrace.store.protocol import Store

AT_ONCE = 16  # records that a store is asked for
PAGE_BYTES = 16 << 20  # payloads, results and logs of a page, which may have more by what is read at once


async def page_after(store: Store, cursor: str | None, limit: int) -> ExportPage:
    """Return the records of one kind after this cursor, up to `limit` or about `PAGE_BYTES`."""
    found: list[Exported] = []
    size = 0
    while True:
        wanted = min(AT_ONCE, limit - len(found))
        page = await store.export(cursor, wanted)
        found += page.records
        size += sum(map(_size, page.records))
        cursor = page.cursor
        ends_kind = cursor is None or len(page.records) < wanted
        if ends_kind or len(found) >= limit or size >= PAGE_BYTES:
            return ExportPage(tuple(found), cursor)


async def records_of(store: Store, at_once: int = AT_ONCE) -> AsyncIterator[Exported]:
    """Iterate over all records of a store."""
    cursor: str | None = None
    while True:
        page = await store.export(cursor, at_once)
        for record in page.records:
            yield record
        if page.cursor is None:
            return
        cursor = page.cursor


def _size(record: Exported) -> int:
    if not isinstance(record, ExportedJob):
        return 0
    job = record.job
    return len(job.payload) + len(job.result or b"") + len(job.log or b"")
