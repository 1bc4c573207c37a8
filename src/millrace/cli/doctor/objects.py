"""The doctor's checks of a bucket or directory: the guarantees of the server, its configuration, and leftovers of
crashes.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.app.format import plural, span
from millrace.cli.doctor.finding import Finding, disk, guarded
from millrace.domain.errors import QueueError
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.store.object.s3.state import BucketState
    from millrace.store.object.store import ObjectStore

LOOKED_AT = 5_000  # the most objects that the check for leftovers reads
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
        found = f"{folder} contains no store" if folder.exists() else f"there is no {folder}"
        return [Finding("directory", "fail", found, "check the path, or create it: millrace init")]
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return [Finding("directory", "fail", f"{folder}: this user cannot write to it", "run as its owner")]
    mode = stat.S_IMODE(folder.stat().st_mode)
    kind = file_system_of(os.path.realpath(folder), mounts_here())
    return [
        Finding("directory", "ok", str(folder)),
        Finding("permissions", "warn", f"other users have access (mode {mode:o})", f"chmod 700 {folder}")
        if mode & 0o077
        else Finding("permissions", "ok", "only its owner has access"),
        _file_system(kind),
        disk(folder),
        _quarantine(folder),
    ]


def _file_system(kind: str) -> Finding:
    if kind in NETWORK_FILE_SYSTEMS:
        do = "move it to a local disk; for several machines use s3:// or a server store"
        return Finding("file system", "fail", f"{kind}: its locks are not reliable between machines", do)
    if kind in IN_MEMORY:
        do = "move it to a disk, unless you can afford to lose the jobs when the machine stops"
        return Finding("file system", "warn", f"{kind}: all jobs are lost when the machine stops", do)
    return Finding("file system", "ok", kind or "unknown file system")


def _quarantine(folder: Path) -> Finding:
    aside = folder / OWN / "quarantine"
    names = sorted(entry.name for entry in aside.iterdir()) if aside.is_dir() else []
    if not names:
        return Finding("quarantine", "ok", "no incomplete file and no file of another program was found")
    do = f"inspect them in {aside}, then delete them. A job whose file is there is lost, unless you have a copy"
    return Finding(
        "quarantine", "warn", f"{plural(len(names), 'file')} moved to quarantine, newest {names[-1][:80]}", do
    )


async def check_bucket(url: str, env: dict[str, str]) -> list[Finding]:
    """Check that the bucket can be reached, and check its configuration. If the credentials may not read a setting,
    this is reported, but it is not a failure.
    """
    from millrace.store.object.options import bucket_environment
    from millrace.store.object.s3.address import BucketAddress
    from millrace.store.object.s3.admin import BucketAdmin
    from millrace.store.object.s3.state import state_of

    try:
        admin = BucketAdmin(BucketAddress.parse(url, bucket_environment(env)))
        state = await asyncio.to_thread(state_of, admin)
    except (QueueError, OSError) as error:
        do = "check the endpoint, and that the server is up and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set"
        return [Finding("bucket", "fail", str(error), do)]
    if state.exists is False:
        do = "check its name, or create it: millrace init"
        return [Finding("bucket", "fail", f"there is no bucket {admin.address.bucket!r}", do)]
    if state.exists is None:
        do = "the jobs may still be accessible; grant s3:ListBucket to these credentials to check"
        return [Finding("bucket", "warn", state.unread["bucket"], do)]
    optional = admin.address.versioning == "optional"
    found = [Finding("bucket", "ok", f"{admin.address.bucket} answers at {admin.address.server}")]
    return [*found, _versioning(state, optional), _lifecycle(state), _cors(state)]


def _versioning(state: BucketState, optional: bool) -> Finding:
    if state.versioning is None:
        return _unread(state, "versioning", "s3:GetBucketVersioning")
    if state.versioning == "on":
        return Finding("versioning", "ok", "on: each version of a job's object is kept")
    words = f"{state.versioning}: the history of a job has its events, but no versions of its record"
    do = "millrace init turns it on; if this server's conditional writes fail under versioning, leave it"
    return Finding("versioning", "warn" if optional else "fail", words, do)


def _lifecycle(state: BucketState) -> Finding:
    from millrace.store.object.s3.admin import INDEXES

    if state.expiring is None:
        return _unread(state, "lifecycle", "s3:GetLifecycleConfiguration")
    missing = [family for family in INDEXES if family not in state.expiring and "" not in state.expiring]
    short = state.expiring.get("tasks/", state.expiring.get(""))
    history = "versions of jobs are kept" if short is None else f"versions of jobs are deleted after {short} d"
    if state.versioning == "on" and missing:
        words = f"no lifecycle rule deletes old versions of {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}"
        return Finding(
            "lifecycle", "warn", words, "millrace init creates the rules; without them, listings become slow"
        )
    return Finding("lifecycle", "ok", f"old versions of index objects are deleted, {history}")


def _cors(state: BucketState) -> Finding:
    if state.origins is None:
        return _unread(state, "CORS", "s3:GetBucketCORS")
    if state.open_to_all:
        do = "name the pages instead of '*': millrace init --origin https://jobs.example.com"
        return Finding("CORS", "warn", "any web page may write to it from a browser that has credentials", do)
    words = f"pages of {', '.join(state.origins)}" if state.origins else "no web page may use the bucket from a browser"
    return Finding("CORS", "ok", words)


def _unread(state: BucketState, what: str, permission: str) -> Finding:
    return Finding(what, "ok", f"cannot be read with these credentials or on this server ({permission})")


# ── once it is open ───────────────────────────────────────────────────────────────────────────


async def check_objects(store: Store, quick: bool) -> list[Finding]:
    from millrace.store.object.store import ObjectStore

    if not isinstance(store, ObjectStore):
        return []
    findings = _guarantees(store)
    if not quick:
        findings += await _leftovers(store)
    return findings


def _guarantees(store: ObjectStore) -> list[Finding]:
    """Return what was verified about the server when the store was opened. Return an empty list for a directory, which
    needs no such check.
    """
    driver = store.blobs.driver
    found = getattr(driver, "findings", None)
    if found is None:
        return []
    tags = "in quotation marks" if getattr(driver, "quotes", True) else "bare"
    reads = "transfers no data" if found.conditional_reads else "transfers it again: more traffic, but correct"
    return [
        Finding("promises", "ok", f"checked now: {'; '.join(found.checks)}"),
        Finding("dialect", "ok", f"ETags are sent {tags}; reading an unchanged object {reads}"),
    ]


def check_reports(store: Store) -> list[Finding]:
    """Return a finding if the driver of the directory has found strange files during the other checks."""
    driver = getattr(getattr(store, "blobs", None), "driver", None)
    reports = getattr(driver, "reports", [])
    if not reports:
        return []
    do = "inspect the files that were moved to quarantine or skipped; only Millrace should write to the directory"
    return [Finding("strange files", "warn", reports[-1], do)]


async def _leftovers(store: ObjectStore) -> list[Finding]:
    from millrace.store.object.dry import DryLook

    look = DryLook(store)
    do = "check that the store can be reached, and try again; --quick skips this check"
    answer = await guarded("leftovers", look.repairs(LOOKED_AT, full=False), do)
    if isinstance(answer, Finding):
        return [answer]
    repairs, more = answer
    scope = f"the first {LOOKED_AT:,} objects that changed since the last sweep" if more else "all that changed"
    if repairs:
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in repairs.items())
        do = "a worker's monitor repairs them; with --no-monitor everywhere, run millrace monitor"
        findings = [Finding("leftovers", "warn", f"a sweep would repair ({scope}): {counts}", do)]
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
        do = "its process is gone: the sweep, or the next write to the object, discards it. No job is lost"
        return Finding("transactions", "warn", f"open for {span(age)}: {key}", do)
    return Finding("transactions", "ok", f"one is open since {span(max(0, age))}, which is normal while jobs run")
