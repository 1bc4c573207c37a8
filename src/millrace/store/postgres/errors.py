"""Errors of PostgreSQL and the network: which of them a retry may solve, and messages for the others."""

from __future__ import annotations

import asyncio

import asyncpg

from millrace.domain.errors import StoreClosed, StoreError

NOT_ON_FAST_PATH = "MR001"  # our own code: the call needs the ledger
CLOSED = "MR002"  # our own code: functions/closing.sql
TAKEN = "23505"  # an id that was assumed to be new exists

_PASSES = ("40001", "40P01", "55P03", TAKEN)
READ_ONLY = "25006"  # the server is read-only: a standby, or a primary that was fenced off
_ALONE = ("57P05", "25P03", "53300")  # errors that concern one connection only
_GONE = ("08", "57P01", "57P02", "57P03", READ_ONLY, *_ALONE)


def code_of(error: BaseException) -> str:
    code: object = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else ""


def passes(error: BaseException) -> bool:
    """Return whether the error is a conflict with a concurrent transaction: the step was rolled back and can be
    retried.
    """
    return code_of(error) in _PASSES


def is_cut(error: BaseException) -> bool:
    """Return whether the connection is lost or unusable. It is then not known whether the statement was committed."""
    code = code_of(error)
    if code:
        return code.startswith(_GONE)
    return isinstance(error, OSError | asyncio.TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def may_have_moved(error: BaseException) -> bool:
    """Return whether the store's other connections may be unusable too, for example after a failover."""
    return is_cut(error) and code_of(error) not in _ALONE


def store_error(error: BaseException, url: str) -> StoreError:
    code = code_of(error)
    if code == CLOSED:
        return StoreClosed(str(getattr(error, "message", "")), str(getattr(error, "detail", "")))
    if code in ("55P03", "57014"):
        return StoreError(
            f"{url}: another transaction holds a lock that this call needs. Nothing of this call was written; end the "
            "transaction that holds it (a long script, a forgotten BEGIN) and call again."
        )
    if code == "53200":
        return StoreError(
            f"{url}: the server has no room for the locks of this call ({error}). Nothing of it was written. Use "
            "fewer groups and keys per call, or increase max_locks_per_transaction on the server."
        )
    if code in ("28P01", "28000"):
        return StoreError(f"{url}: the server refuses this user or password ({error}). Correct the URL.")
    if code == "3D000":
        return StoreError(f"{url}: the database does not exist. Create it with createdb, or correct the URL.")
    if code == "42501":
        return StoreError(f"{url}: this user may not do that ({error}). Grant it, or run `millrace init` as another.")
    if code == "53100":
        return StoreError(f"{url}: the server's disk is full. Nothing of this call was written; free some room.")
    if code == READ_ONLY:
        return StoreError(
            f"{url}: the server is read-only ({error}), and a new connection led to no other: a standby, or a primary "
            "before a failover. Correct the URL (several hosts: add target_session_attrs=read-write), or make the same "
            "call again when the primary is back."
        )
    if is_cut(error):
        what = str(error) or type(error).__name__
        return StoreError(
            f"{url}: the server cannot be reached ({what}). Whether this call was written is not known; the same call "
            "may be made again."
        )
    return StoreError(f"{url}: {error}")
