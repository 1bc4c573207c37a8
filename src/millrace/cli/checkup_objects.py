"""The doctor's look at a bucket or a directory: whether it keeps its word, how it is set up, what was left behind."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.checkup import Finding, disk, guarded
from millrace.cli.text import plural, span
from millrace.domain.errors import QueueError
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.store.object.s3.state import BucketState
    from millrace.store.object.store import ObjectStore

LOOKED_AT = 5_000  # objects that a look for leftovers reads at most
OPEN_FOR_LONG = 60_000
OWN = ".millrace"
IN_MEMORY = ("tmpfs", "ramfs")

# ── before it is opened ───────────────────────────────────────────────────────────────────────


def check_folder(folder: Path) -> list[Finding]:
    try:
        return _folder(folder)
    except OSError as error:
        return [Finding("directory", "fail", f"{folder}: {error.strerror}", "run as its owner")]


def _folder(folder: Path) -> list[Finding]:
    if not (folder / OWN / "format").exists():
        found = "there is no" if not folder.exists() else "no store is in"
        return [Finding("directory", "fail", f"{found} {folder}", "check the path, or create it: millrace init")]
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return [Finding("directory", "fail", f"{folder}: this user may not write it", "run as its owner")]
    mode = stat.S_IMODE(folder.stat().st_mode)
    kind = file_system_of(os.path.realpath(folder), mounts_here())
    return [
        Finding("directory", "ok", str(folder)),
        Finding("permissions", "warn", f"others may enter it (mode {mode:o})", f"chmod 700 {folder}")
        if mode & 0o077
        else Finding("permissions", "ok", "its owner only"),
        _file_system(kind),
        disk(folder),
        _quarantine(folder),
    ]


def _file_system(kind: str) -> Finding:
    if kind in NETWORK_FILE_SYSTEMS:
        do = "move it to a local disk; for several machines use s3:// or a server store"
        return Finding("file system", "fail", f"{kind}: its locks cannot be trusted between machines", do)
    if kind in IN_MEMORY:
        do = "move it to a disk, unless losing the jobs with the machine is all right"
        return Finding("file system", "warn", f"{kind}: all jobs are gone when the machine stops", do)
    return Finding("file system", "ok", kind or "its kind is not known here")


def _quarantine(folder: Path) -> Finding:
    aside = folder / OWN / "quarantine"
    names = sorted(entry.name for entry in aside.iterdir()) if aside.is_dir() else []
    if not names:
        return Finding("quarantine", "ok", "no torn or foreign file was found")
    do = f"look at them in {aside}; a job among them is lost unless you have a copy. Remove them when you have"
    return Finding("quarantine", "warn", f"{plural(len(names), 'file')} put aside, newest {names[-1][:80]}", do)


async def check_bucket(url: str, env: dict[str, str]) -> list[Finding]:
    """Reachability and set-up. What the credentials may not see is told, and is no failure."""
    from millrace.store.object.s3.address import Address
    from millrace.store.object.s3.admin import BucketAdmin
    from millrace.store.object.s3.state import state_of
    from millrace.store.object.settings import bucket_environment

    try:
        admin = BucketAdmin(Address.parse(url, bucket_environment(env)))
        state = await asyncio.to_thread(state_of, admin)
    except (QueueError, OSError) as error:
        do = "see that the endpoint is right and up, and that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set"
        return [Finding("bucket", "fail", str(error), do)]
    if state.exists is False:
        do = "check its name, or create it: millrace init"
        return [Finding("bucket", "fail", f"there is no bucket {admin.address.bucket!r}", do)]
    if state.exists is None:
        do = "the jobs may still be within reach; give the credentials s3:ListBucket to be sure"
        return [Finding("bucket", "warn", state.unread["bucket"], do)]
    optional = admin.address.versioning == "optional"
    found = [Finding("bucket", "ok", f"{admin.address.bucket} answers at {admin.address.server}")]
    return [*found, _versioning(state, optional), _lifecycle(state), _cors(state)]


def _versioning(state: BucketState, optional: bool) -> Finding:
    if state.versioning is None:
        return _unread(state, "versioning", "s3:GetBucketVersioning")
    if state.versioning == "on":
        return Finding("versioning", "ok", "on: each version of a job's object is kept")
    words = f"{state.versioning}: a job's history is what its own record says"
    do = "millrace init turns it on; if this server's conditional writes fail under versioning, leave it (BO-23)"
    return Finding("versioning", "warn" if optional else "fail", words, do)


def _lifecycle(state: BucketState) -> Finding:
    from millrace.store.object.s3.admin import INDEXES

    if state.expiring is None:
        return _unread(state, "lifecycle", "s3:GetLifecycleConfiguration")
    missing = [family for family in INDEXES if family not in state.expiring and "" not in state.expiring]
    short = state.expiring.get("tasks/", state.expiring.get(""))
    history = "of jobs never" if short is None else f"of jobs after {short} d"
    if state.versioning == "on" and missing:
        words = f"nothing removes old versions of {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}"
        return Finding("lifecycle", "warn", words, "millrace init makes the rules; without them listings slow down")
    return Finding("lifecycle", "ok", f"old versions of index objects go in time, {history}")


def _cors(state: BucketState) -> Finding:
    if state.origins is None:
        return _unread(state, "CORS", "s3:GetBucketCORS")
    if state.open_to_all:
        do = "name the pages instead of '*': millrace init --origin https://jobs.example.com"
        return Finding("CORS", "warn", "any page may write from a browser that has credentials", do)
    words = f"pages of {', '.join(state.origins)}" if state.origins else "no page may use the bucket from a browser"
    return Finding("CORS", "ok", words)


def _unread(state: BucketState, what: str, permission: str) -> Finding:
    return Finding(what, "ok", f"cannot be asked with these credentials or on this server ({permission})")


# ── once it is open ───────────────────────────────────────────────────────────────────────────


async def check_objects(store: Store, quick: bool) -> list[Finding]:
    from millrace.store.object.store import ObjectStore

    if not isinstance(store, ObjectStore):
        return []
    findings = _promises(store)
    if not quick:
        findings += await _leftovers(store)
    return findings


def _promises(store: ObjectStore) -> list[Finding]:
    """What the probe at connect has proved; a directory has nothing to prove."""
    driver = store.blobs.driver
    found = getattr(driver, "findings", None)
    if found is None:
        return []
    tags = "in quotation marks" if getattr(driver, "quotes", True) else "bare"
    reads = "costs no transfer" if found.conditional_reads else "is sent again each time: more traffic, nothing worse"
    return [
        Finding("promises", "ok", f"proved just now: {'; '.join(found.checks)}"),
        Finding("dialect", "ok", f"tags are sent {tags}; an unchanged object {reads}"),
    ]


def check_reports(store: Store) -> list[Finding]:
    """What a directory's driver came upon while the rest was looked at."""
    driver = getattr(getattr(store, "blobs", None), "driver", None)
    reports = getattr(driver, "reports", [])
    if not reports:
        return []
    do = "look at what was put aside or passed over; nothing but millrace should write into the directory"
    return [Finding("strange files", "warn", reports[-1], do)]


async def _leftovers(store: ObjectStore) -> list[Finding]:
    from millrace.store.object.dry import DryLook

    look = DryLook(store)
    do = "see that the store can be reached, and try again; --quick leaves this out"
    answer = await guarded("leftovers", look.repairs(LOOKED_AT, full=False), do)
    if isinstance(answer, Finding):
        return [answer]
    repairs, more = answer
    scope = f"the first {LOOKED_AT:,} objects that changed since the last sweep" if more else "all that changed"
    if repairs:
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in repairs.items())
        do = "a worker's monitor repairs them; with --no-monitor everywhere, run millrace monitor"
        findings = [Finding("leftovers", "warn", f"a sweep would put right ({scope}): {told}", do)]
    else:
        findings = [Finding("leftovers", "ok", f"a sweep would find nothing to repair in {scope}")]
    return [*findings, await _undecided(store, look)]


async def _undecided(store: ObjectStore, look: object) -> Finding:
    from millrace.store.object.dry import DryLook

    assert isinstance(look, DryLook)
    oldest = await look.oldest_undecided()
    if oldest is None:
        return Finding("transactions", "ok", "none is open")
    key, since = oldest
    age = await store.now() - since
    if age > OPEN_FOR_LONG:
        do = "its owner is gone: the sweep, or the next write to that object, gives it up. Nothing is lost"
        return Finding("transactions", "warn", f"open for {span(age)}: {key}", do)
    return Finding("transactions", "ok", f"one is open since {span(max(0, age))}, as it should be while jobs move")
