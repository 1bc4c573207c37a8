"""The meaning of the server's error responses to a write.

The statuses 412 and 404 mean that the write was refused, and 409 that another write was in progress. If there is no
response, and after most 5xx statuses, the outcome is unknown.
"""

from __future__ import annotations

import re

from millrace.domain.errors import StoreError
from millrace.store.object.driver import Answer, Conflict, NoAnswer, Refused, Unavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_OVERTAKEN = (
    "<Code>UnknownError</Code>"  # Ceph's answer to a write that lost a race; nothing was written (its ECANCELED)
)
_PASSING = frozenset({408, 425, 429})  # 4xx codes that are temporary
_CAUSES = {
    "NoSuchBucket": "the bucket does not exist. Create it with `millrace init`, or correct its name.",
    "AccessDenied": "access was denied. These credentials need to get, put, delete and list objects of this bucket.",
    "InvalidAccessKeyId": "the server does not know this access key. Check AWS_ACCESS_KEY_ID.",
    "SignatureDoesNotMatch": "the signature was refused. Check AWS_SECRET_ACCESS_KEY and the region.",
    "RequestTimeTooSkewed": "this machine's clock is too far from the server's. Set it (NTP).",
    "ExpiredToken": "the session token has expired. Renew the credentials.",
    "NotImplemented": "the server does not implement this operation: conditional writes are required.",
}


def status_of(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found.group(1)) if found else None


def answer_of(error: Exception, address: str) -> Answer:
    """Return the answer that an error response to a write stands for. Raise StoreError if a retry cannot help."""
    status = status_of(error)
    if status == 409 or (status == 500 and _OVERTAKEN in str(error)):
        return Conflict()
    if status == 412 or (status == 404 and not _is_final(error)):
        return Refused()
    if status is None and type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
        return Refused()
    return Unavailable(str(no_answer(error, address)))


def no_answer(error: Exception, address: str) -> NoAnswer:
    """Return a NoAnswer for a temporary error. Raise StoreError if a retry cannot help."""
    status = status_of(error)
    if _is_final(error) or (status is not None and 400 <= status < 500 and status not in _PASSING | {404, 409, 412}):
        raise final(error, address)
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "InvalidPathError"):
        raise final(error, address)
    return NoAnswer(f"HTTP {status}" if status else _brief(error))


def final(error: Exception, address: str) -> StoreError:
    code = _CODE.search(str(error))
    message = _MESSAGE.search(str(error))
    cause = _CAUSES.get(code.group(1)) if code else None
    status = status_of(error)
    said = f"{code.group(1)}: {message.group(1) if message else ''}" if code else f"HTTP {status}: {_brief(error)}"
    return StoreError(f"{address}: {cause or said}")


def _is_final(error: Exception) -> bool:
    code = _CODE.search(str(error))
    return code is not None and code.group(1) in _CAUSES


def _brief(error: Exception) -> str:
    """Return the first line of the error, without URLs and without the long details that drivers add."""
    line = str(error).partition("\n")[0]
    return re.sub(r"https?://\S+", "", line).replace("  ", " ")[:200]
