"""Fingerprints of errors: dead jobs that died of the same cause get the same one.

A message names ids, numbers and paths that differ from job to job, so these are left out before it is hashed. The
place in the code is left out too: it moves with every release, and the cause stays.
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
    """The error of a dead job in one line, without what varies."""
    message = "" if job.error is None else job.error.message.strip().partition("\n")[0][:500]
    kind = "" if job.error is None else job.error.type
    return _without_what_varies(kind, message)


@lru_cache(4_096)  # thousands die of one cause, and many of them in the same words
def _without_what_varies(kind: str, message: str) -> str:
    return f"{kind}: {_VARIES.sub('…', message)}".strip(": ")


def fingerprint(job: Job) -> str:
    """Equal for jobs of one task that died of the same cause."""
    return _hashed(job.task, job.reason or "", cause(job))


@lru_cache(4_096)
def _hashed(task: str, reason: str, cause: str) -> str:
    text = f"{task}\0{reason}\0{cause}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]
