"""The doctor's checks of the open store: durability, integrity and clock."""

from __future__ import annotations

import time

from millrace.app.format import plural, span
from millrace.cli.doctor.finding import Finding, guarded
from millrace.store.protocol import Store

MOST_SKEW = 1_000
CLAIMS_STOP = 60_000  # allowed difference between a bucket's clock and this machine's
INTACT = (
    "stop all workers and copy the file first. Then restore a backup, or export what is readable: sqlite3 FILE .recover"
)


async def check_store(store: Store, quick: bool) -> list[Finding]:
    findings = [Finding("schema", "ok", "matches this version of Millrace")]  # a store of another version does not open
    survives = getattr(store, "durability", None) or getattr(getattr(store, "blobs", None), "durability", None)
    if survives is not None:
        relaxed = "durability=relaxed" in store.url
        do = "remove ?durability=relaxed if an acknowledged job must never be lost"
        if getattr(getattr(store, "options", None), "durability", None) == "relaxed":  # the default of a server store
            relaxed, do = True, "add ?durability=disk (or replicated) if an acknowledged job must never be lost"
        findings.append(Finding("durability", "warn" if relaxed else "ok", str(survives), do))
    if not quick:
        findings += await _integrity(store)
    return [*findings, *await _clock(store)]


async def _integrity(store: Store) -> list[Finding]:
    """Check the whole store for damage. Return no finding if the store does not offer such a check."""
    look = getattr(store, "check", None)
    if look is None:
        return []
    found = await guarded("integrity", look(), INTACT)
    if isinstance(found, Finding):
        return [found]
    if found:
        return [Finding("integrity", "fail", f"{plural(len(found), 'defect')}: {found[0]}", INTACT)]
    return [Finding("integrity", "ok", "the whole file was read; it is intact")]


async def _clock(store: Store) -> list[Finding]:
    before = time.time_ns() // 1_000_000
    now = await guarded("clock", store.now(), "check that the store is up and can be reached")
    if isinstance(now, Finding):
        return [now]
    after = time.time_ns() // 1_000_000
    skew = max(before - now, now - after, 0)
    if skew > getattr(getattr(store, "options", None), "max_clock_skew", MOST_SKEW):
        do = "synchronize the clocks (NTP); due times use the store's clock, log lines this machine's clock"
        differ = f"the clocks of the store and this machine differ by {span(skew)}"
        if store.url.startswith("s3:") and skew > CLAIMS_STOP:
            return [Finding("clock", "fail", f"{differ}: a worker on this machine claims nothing", do)]
        return [Finding("clock", "warn", differ, do)]
    return [Finding("clock", "ok", f"agrees with this machine within {span(max(skew, 1))}")]
