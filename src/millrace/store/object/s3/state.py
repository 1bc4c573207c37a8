"""Reads the configuration of a bucket, as far as the credentials allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.driver import NoAnswer
from millrace.store.object.s3.admin import BucketAdmin

T = TypeVar("T")


class BucketState(msgspec.Struct):
    """The configuration of a bucket. A field that could not be read is None, and `unread` says why."""

    exists: bool | None = None
    versioning: Literal["on", "off", "suspended"] | None = None
    expiring: dict[str, int] | None = None  # key family -> days for which old versions are kept
    origins: tuple[str, ...] | None = None  # web origins that may use the bucket and see ETags
    open_to_all: bool = False  # a CORS rule lets any web page write
    unread: dict[str, str] = {}


def state_of(admin: BucketAdmin) -> BucketState:
    """Read the configuration. Blocks. Raise NoAnswer if the server cannot be reached."""
    state = BucketState(unread={})
    state.exists = _exists(admin, state)
    if not state.exists:
        return state
    state.versioning = _read(state, "versioning", lambda: _versioning(admin.ask("get_bucket_versioning")))
    state.expiring = _read(state, "lifecycle", lambda: _expiring(admin))
    cors = _read(state, "CORS", lambda: admin.rules("get_bucket_cors", "CORSRules"))
    if cors is not None:
        seeing = [rule for rule in cors if "etag" in (name.lower() for name in rule.get("ExposeHeaders", ()))]
        state.origins = tuple(sorted({origin for rule in seeing for origin in rule["AllowedOrigins"]}))
        state.open_to_all = any("*" in rule["AllowedOrigins"] and "PUT" in rule["AllowedMethods"] for rule in cors)
    return state


def _exists(admin: BucketAdmin, state: BucketState) -> bool | None:
    try:
        admin.ask("head_bucket")
    except NoAnswer:
        raise
    except StoreError as error:
        if "(404)" in str(error) or "NoSuchBucket" in str(error):
            return False
        state.unread["bucket"] = str(error)
        return None
    return True


def _read(state: BucketState, what: str, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except StoreError as error:
        state.unread[what] = str(error)
        return None


def _versioning(reply: Any) -> Literal["on", "off", "suspended"]:
    match reply.get("Status"):
        case "Enabled":
            return "on"
        case "Suspended":
            return "suspended"
        case _:
            return "off"


def _expiring(admin: BucketAdmin) -> dict[str, int]:
    """Return the key families whose old versions are deleted by a lifecycle rule, and after how many days.

    If several rules apply to a family, the smallest number of days counts.
    """
    found: dict[str, int] = {}
    prefix = admin.address.prefix
    for rule in admin.rules("get_bucket_lifecycle_configuration", "Rules"):
        days = rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays")
        covered = rule.get("Filter", {}).get("Prefix", rule.get("Prefix"))
        if rule.get("Status") != "Enabled" or days is None or covered is None or not covered.startswith(prefix):
            continue
        family = covered[len(prefix) :]
        found[family] = min(days, found.get(family, days))
    return found
