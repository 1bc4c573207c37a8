"""What PostgreSQL and the network complain of: which of it passes when asked again, and the rest in words."""

from __future__ import annotations

import asyncio

import asyncpg

from millrace.domain.errors import StoreError

LONG_WAY = "MR001"  # our own: what was thought to be plain is not
TAKEN = "23505"  # an id that was thought to be new is not

_PASSES = ("40001", "40P01", "55P03", TAKEN)
_GONE = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "53300")


def code_of(error: BaseException) -> str:
    code: object = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else ""


def passes(error: BaseException) -> bool:
    """Another one was faster, and the step was undone: it can be done again at once."""
    return code_of(error) in _PASSES


def is_cut(error: BaseException) -> bool:
    """The connection is gone. What was asked may have happened, or not."""
    code = code_of(error)
    if code:
        return code.startswith(_GONE)
    return isinstance(error, OSError | asyncio.TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def store_error(error: BaseException, url: str) -> StoreError:
    code = code_of(error)
    if code in ("55P03", "57014"):
        return StoreError(
            f"{url}: another transaction keeps what this call needs locked. Nothing of this call was written; end the "
            "transaction that holds it (a long script, a forgotten BEGIN) and call again."
        )
    if code in ("28P01", "28000"):
        return StoreError(f"{url}: the server refuses this user or password ({error}). Correct the URL.")
    if code == "3D000":
        return StoreError(f"{url}: the database does not exist. Make it with createdb, or correct the URL.")
    if code == "42501":
        return StoreError(f"{url}: this user may not do that ({error}). Grant it, or run `millrace init` as another.")
    if code == "53100":
        return StoreError(f"{url}: the server's disk is full. Nothing of this call was written; free some room.")
    if is_cut(error):
        what = str(error) or type(error).__name__
        return StoreError(
            f"{url}: the server cannot be reached ({what}). Whether this call was written is not known; the same call "
            "may be made again."
        )
    return StoreError(f"{url}: {error}")
