"""`millrace init` for a bucket: what is to be done to it, and doing it (O-32, BO-09, BO-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from millrace.domain.errors import StoreError

if TYPE_CHECKING:
    from millrace.store.object.s3.admin import BucketAdmin
    from millrace.store.object.s3.state import BucketState

HISTORY = "tasks/"


@dataclass
class Step:
    """`done` says what holds afterwards; `status` is what was found or came of it."""

    what: str
    status: Literal["was so", "to do", "done", "failed"]
    words: str
    act: Callable[[], object] | None = None
    needed: bool = True  # whether the store works without it


async def set_up(
    url: str,
    origins: Sequence[str],
    history_days: int | None,
    dry_run: bool,
    env: dict[str, str],
    redact: Sequence[str] | None = None,
) -> list[Step]:
    """Look at the bucket, and do what is missing. Every step is told, also when it failed. `redact` names the fields
    that the dashboard is to hide, beside the usual ones; None: the bucket gets no dashboard."""
    from millrace.store.object.s3.address import Address
    from millrace.store.object.s3.admin import BucketAdmin, check_origins
    from millrace.store.object.s3.state import state_of
    from millrace.store.object.settings import bucket_environment

    check_origins(origins)
    admin = BucketAdmin(Address.parse(url, bucket_environment(env)))
    state = await asyncio.to_thread(state_of, admin)
    steps = _steps(admin, state, origins, history_days)
    if redact is not None:
        from millrace.cli.init_page import page_step

        steps.append(await asyncio.to_thread(page_step, admin, redact))
    if not dry_run:
        for step in steps:
            await asyncio.to_thread(_carry_out, step)
            if step.status == "failed" and step.what == "bucket":
                break
    return steps


def _carry_out(step: Step) -> None:
    if step.act is None:
        return
    try:
        step.act()
    except StoreError as error:
        step.status, step.words = "failed", str(error)
    else:
        step.status = "done"


def _steps(admin: BucketAdmin, state: BucketState, origins: Sequence[str], history_days: int | None) -> list[Step]:
    steps = [_bucket(admin, state)]
    if admin.address.versioning == "required" or state.versioning == "on":
        steps.append(_versioning(admin, state))
    else:
        words = "left as it is: the URL or MILLRACE_ALLOW_NO_VERSIONING says that it may be off"
        steps.append(Step("versioning", "was so", words))
    steps.append(_lifecycle(admin, state, history_days))
    if origins:
        steps.append(_cors(admin, state, origins))
    return steps


def _bucket(admin: BucketAdmin, state: BucketState) -> Step:
    name = admin.address.bucket
    if state.exists is False:
        return Step("bucket", "to do", f"{name} is created", admin.create)
    return Step("bucket", "was so", f"{name} exists")


def _versioning(admin: BucketAdmin, state: BucketState) -> Step:
    if state.versioning == "on":
        return Step("versioning", "was so", "every version of a job's object is kept")
    return Step("versioning", "to do", "every version of a job's object is kept from now on", admin.keep_versions)


def _lifecycle(admin: BucketAdmin, state: BucketState, history_days: int | None) -> Step:
    from millrace.store.object.s3.admin import INDEXES

    wanted = dict.fromkeys(INDEXES, 1)
    if history_days is not None:
        wanted[HISTORY] = history_days
    found = state.expiring or {}
    days_of_jobs = wanted.get(HISTORY, found.get(HISTORY))
    kept = "those of jobs never" if days_of_jobs is None else f"those of jobs after {days_of_jobs} d"
    words = f"old versions of {len(INDEXES)} kinds of index and control objects go after 1 d, {kept}"
    missing = [family for family, days in wanted.items() if found.get(family) != days]
    if not missing:
        return Step("lifecycle", "was so", words, needed=False)

    def act() -> None:
        admin.expire([family for family in wanted if family != HISTORY], 1)
        if history_days is not None:
            admin.expire([HISTORY], history_days)

    return Step("lifecycle", "to do", words, act, needed=False)


def _cors(admin: BucketAdmin, state: BucketState, origins: Sequence[str]) -> Step:
    words = f"pages of {', '.join(origins)} may read and swap, and see ETags"
    if set(origins) <= set(state.origins or ()):
        return Step("CORS", "was so", words, needed=False)
    return Step("CORS", "to do", words, lambda: admin.allow(origins), needed=False)
