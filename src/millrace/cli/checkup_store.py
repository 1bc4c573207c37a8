"""The doctor's look at the store itself: what it survives, whether it is whole, and what its clock says."""

from __future__ import annotations

import time

from millrace.cli.checkup import Finding, guarded
from millrace.cli.text import plural, span
from millrace.store.protocol import Store

MOST_SKEW = 1_000
CLAIMS_STOP = 60_000  # a bucket's clock and this machine's must agree so far (O-13)
INTACT = "stop all workers and copy the file first; then see docs/stores.md on repair"


async def check_store(store: Store, quick: bool) -> list[Finding]:
    findings = [Finding("schema", "ok", "of this version")]  # a store of another version refuses to open
    survives = getattr(store, "durability", None) or getattr(getattr(store, "blobs", None), "durability", None)
    if survives is not None:
        relaxed = "durability=relaxed" in store.url
        do = "leave out ?durability=relaxed where an accepted job must never be lost"
        if getattr(getattr(store, "options", None), "durability", None) == "relaxed":  # of a server, its default
            relaxed, do = True, "add ?durability=disk (or replicated) where an accepted job must never be lost"
        findings.append(Finding("durability", "warn" if relaxed else "ok", str(survives), do))
    if not quick:
        findings += await _integrity(store)
    return [*findings, *await _clock(store)]


async def _integrity(store: Store) -> list[Finding]:
    """Stores that can be damaged from outside have a way to look through the whole of them."""
    look = getattr(store, "check", None)
    if look is None:
        return []
    found = await guarded("integrity", look(), INTACT)
    if isinstance(found, Finding):
        return [found]
    if found:
        return [Finding("integrity", "fail", f"{plural(len(found), 'defect')}: {found[0]}", INTACT)]
    return [Finding("integrity", "ok", "the whole file was read and is sound")]


async def _clock(store: Store) -> list[Finding]:
    before = time.time_ns() // 1_000_000
    now = await guarded("clock", store.now(), "see that the store is up and can be reached")
    if isinstance(now, Finding):
        return [now]
    after = time.time_ns() // 1_000_000
    skew = max(before - now, now - after, 0)
    if skew > getattr(getattr(store, "options", None), "max_clock_skew", MOST_SKEW):
        do = "set the clocks right (NTP); due times are the store's, log lines this machine's"
        if store.url.startswith("s3:") and skew > CLAIMS_STOP:
            return [Finding("clock", "fail", f"off by {span(skew)}: a worker on this machine claims nothing", do)]
        return [Finding("clock", "warn", f"the store's clock is off by {span(skew)}", do)]
    return [Finding("clock", "ok", f"agrees with this machine within {span(max(skew, 1))}")]
