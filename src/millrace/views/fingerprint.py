"""Fingerprints of errors: dead jobs of one task with the same cause have the same fingerprint.

Ids, numbers and quoted text in a message differ from job to job, so they are replaced before the message is hashed. The
place in the code is not included, because it changes with every release.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from millrace.domain.job import Job

LENGTH = 10
_VARIES = re.compile(
    r"""
      [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}   # a UUID
    | 0x[0-9a-f]+                                                    # an address
    | \b(?=[a-f]*\d)[0-9a-f]{8,}\b                                   # a hash
    | '[^']*' | "[^"]*"                                              # what was quoted
    | \d+                                                            # any number
    """,
    re.VERBOSE | re.IGNORECASE,
)


def cause(job: Job) -> str:
    """Return the error type of a dead job and the first line of its message, with ids and numbers replaced by `…`."""
    return "" if job.error is None else cause_of(job.error.type, job.error.message)


def cause_of(kind: str, message: str) -> str:
    """Return an error type and the first line of a message, with ids and numbers replaced by `…`."""
    return _without_what_varies(kind, message.strip().partition("\n")[0][:500])


@lru_cache(4_096)  # many dead jobs have the same message
def _without_what_varies(kind: str, message: str) -> str:
    return f"{kind}: {_VARIES.sub('…', message)}".strip(": ")


def fingerprint(job: Job) -> str:
    """Return the fingerprint of a dead job. It is equal for jobs of one task with the same reason and cause."""
    return _hashed(job.task, job.reason or "", cause(job))


@lru_cache(4_096)
def _hashed(task: str, reason: str, cause: str) -> str:
    text = f"{task}\0{reason}\0{cause}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]
