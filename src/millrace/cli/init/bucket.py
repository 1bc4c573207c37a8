"""`millrace init` for a bucket: determines which steps are needed, and runs them."""

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
class SetupStep:
    """One step of the setup. `status` says what was found, or how the step ended; `words` is the text for the user."""

    what: str
    status: Literal["was so", "to do", "done", "failed"]
    words: str
    act: Callable[[], object] | None = None
    needed: bool = True  # False if the store works without it


async def set_up(
    url: str,
    origins: Sequence[str],
    history_days: int | None,
    dry_run: bool,
    env: dict[str, str],
    redact: Sequence[str] | None = None,
) -> list[SetupStep]:
    """Inspect the bucket and run the missing setup steps; with `dry_run`, only inspect it. Return all steps, including
    failed ones. `redact` lists additional fields for the dashboard to hide; with None, no dashboard is installed.
    """
    from millrace.store.object.options import bucket_environment
    from millrace.store.object.s3.address import BucketAddress
    from millrace.store.object.s3.admin import BucketAdmin, check_origins
    from millrace.store.object.s3.state import state_of

    check_origins(origins)
    admin = BucketAdmin(BucketAddress.parse(url, bucket_environment(env)))
    state = await asyncio.to_thread(state_of, admin)
    steps = _steps(admin, state, origins, history_days)
    if redact is not None:
        from millrace.cli.init.page import page_step

        steps.append(await asyncio.to_thread(page_step, admin, redact))
    if not dry_run:
        for step in steps:
            await asyncio.to_thread(_carry_out, step)
            if step.status == "failed" and step.what == "bucket":
                break
    return steps


def _carry_out(step: SetupStep) -> None:
    if step.act is None:
        return
    try:
        step.act()
    except StoreError as error:
        step.status, step.words = "failed", str(error)
    else:
        step.status = "done"


def _steps(admin: BucketAdmin, state: BucketState, origins: Sequence[str], history_days: int | None) -> list[SetupStep]:
    steps = [_bucket(admin, state)]
    if admin.address.versioning == "required" or state.versioning == "on":
        steps.append(_versioning(admin, state))
    else:
        words = "unchanged: the URL or MILLRACE_ALLOW_NO_VERSIONING allows it to be off"
        steps.append(SetupStep("versioning", "was so", words))
    steps.append(_lifecycle(admin, state, history_days))
    if origins:
        steps.append(_cors(admin, state, origins))
    return steps


def _bucket(admin: BucketAdmin, state: BucketState) -> SetupStep:
    name = admin.address.bucket
    if state.exists is False:
        return SetupStep("bucket", "to do", f"{name} is created", admin.create)
    return SetupStep("bucket", "was so", f"{name} exists")


def _versioning(admin: BucketAdmin, state: BucketState) -> SetupStep:
    if state.versioning == "on":
        return SetupStep("versioning", "was so", "every version of a job's object is kept")
    return SetupStep("versioning", "to do", "every version of a job's object is kept from now on", admin.keep_versions)


def _lifecycle(admin: BucketAdmin, state: BucketState, history_days: int | None) -> SetupStep:
    from millrace.store.object.s3.admin import INDEXES

    wanted = dict.fromkeys(INDEXES, 1)
    if history_days is not None:
        wanted[HISTORY] = history_days
    found = state.expiring or {}
    days_of_jobs = wanted.get(HISTORY, found.get(HISTORY))
    kept = "versions of jobs are kept" if days_of_jobs is None else f"versions of jobs after {days_of_jobs} d"
    words = f"old versions of index and control objects are deleted after 1 d, {kept}"
    missing = [family for family, days in wanted.items() if found.get(family) != days]
    if not missing:
        return SetupStep("lifecycle", "was so", words, needed=False)

    def act() -> None:
        admin.expire([family for family in wanted if family != HISTORY], 1)
        if history_days is not None:
            admin.expire([HISTORY], history_days)

    return SetupStep("lifecycle", "to do", words, act, needed=False)


def _cors(admin: BucketAdmin, state: BucketState, origins: Sequence[str]) -> SetupStep:
    words = f"pages of {', '.join(origins)} may read and replace objects, and read ETags"
    if set(origins) <= set(state.origins or ()):
        return SetupStep("CORS", "was so", words, needed=False)
    return SetupStep("CORS", "to do", words, lambda: admin.allow(origins), needed=False)
