"""Ids of jobs made from rows: the same row of the same write always gets the same id.

Spark repeats a failed task, may run a slow task twice, and repeats a micro-batch after a restart. The repeated rows get
the same ids, so the store accepts each job only once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

SIZE = 16
_json = msgspec.json.Encoder().encode
Numbers = npt.NDArray[np.uint64]


def job_id(task: str, *values: Any) -> str:
    """Return the job id for a row with `idColumns`: a hash of the task and the values of these columns, in order.

    The hash is computed from a JSON array, so ("a", "bc") and ("ab", "c") have different ids, and so have 1 and "1".
    """
    return id_digest(task, values).hex()


def id_digest(task: str, values: Sequence[Any]) -> bytes:
    return hashlib.blake2b(_json([task, *values]), digest_size=SIZE, person=b"millrace id").digest()


class Scope:
    """One partition of one write. `write` names the write: a second write with the same name enqueues nothing twice.

    All ids of a write start with the same characters, and the ids of a partition share a longer prefix. So they are
    adjacent in an index, and a task touches few index pages. For micro-batches of 8,000 jobs into a table of 400,000,
    this costs a third of what random ids cost.
    """

    def __init__(self, write: str, partition: int) -> None:
        self.write = write
        self.partition = partition
        self.key = hashlib.blake2b(_json([write, partition]), digest_size=SIZE, person=b"millrace write").digest()
        self.token = f"{write_token(write)}-{partition}"
        self._prefix = f"{write_token(write)[:5]}{partition & 0xFFF:03x}"

    def digests(self, contents: Sequence[bytes]) -> list[bytes]:
        new, key = hashlib.blake2b, self.key
        return [new(content, digest_size=SIZE, key=key).digest() for content in contents]

    def id(self, digest: bytes, ordinal: int) -> str:
        """Return the id of a row from its digest. `ordinal` distinguishes rows with equal content: 0, 1, 2 … in any
        order.
        """
        if ordinal:
            digest = hashlib.blake2b(b"%b%d" % (digest, ordinal), digest_size=SIZE, key=self.key).digest()
        return self._prefix + digest[:12].hex()


def write_token(write: str) -> str:
    """Return a short name for the write that is valid as part of a file name."""
    return hashlib.blake2b(write.encode(), digest_size=8).hexdigest()


class Ordinals:
    """Counts, for each row of a partition, how many equal rows came before it.

    A partition can be long, so only 8 bytes are kept for each row, in sorted arrays. Only repeated rows have a counter.
    """

    def __init__(self) -> None:
        self._runs: list[Numbers] = []
        self._again: Counter[bytes] = Counter()

    def next(self, digests: Sequence[bytes]) -> list[int] | None:
        """Return, for each digest, the number of equal digests before it. Return None if all digests are new and
        distinct.
        """
        if not digests:
            return None
        heads: Numbers = np.frombuffer(b"".join(digests), np.uint64)[:: SIZE // 8]
        known = np.zeros(len(heads), np.bool_)
        for run in self._runs:
            places = np.searchsorted(run, heads)
            known |= run[np.minimum(places, len(run) - 1)] == heads
        run = np.sort(heads)
        twice = (run[1:] == run[:-1]).any()
        self._keep(run)
        if not twice and not known.any():
            return None
        return self._counted(digests, known.tolist())

    def _counted(self, digests: Sequence[bytes], known: list[bool]) -> list[int]:
        found: list[int] = []
        here: set[bytes] = set()
        for digest, came_before in zip(digests, known, strict=True):
            if came_before or digest in here:
                self._again[digest] += 1
            here.add(digest)
            found.append(self._again.get(digest, 0))
        return found

    def _keep(self, run: Numbers) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)), kind="stable")  # a stable sort merges sorted runs
        self._runs.append(run)
