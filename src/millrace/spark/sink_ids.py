"""Ids of jobs that are made of rows: the same row of the same write gets the same id, whoever writes it and how often.

Spark runs a task again when it failed, twice when it was slow, and a micro-batch again after a restart. Each of these
asks for the same ids, so the store takes each job once.
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
    """The id of the job of a row that is identified by `idColumns`: of its task, and of these values, in their order.

    A JSON array tells ("a", "bc") from ("ab", "c"), and 1 from "1".
    """
    return id_digest(task, values).hex()


def id_digest(task: str, values: Sequence[Any]) -> bytes:
    return hashlib.blake2b(_json([task, *values]), digest_size=SIZE, person=b"millrace id").digest()


class Scope:
    """One partition of one write. `write` names the write: two of the same name enqueue nothing twice.

    Ids of one write begin alike, and those of one partition of it even more so. They lie side by side in an index, and
    a task touches few pages of it however many jobs there are: for micro-batches of 8,000 into a table of 400,000
    that is a third of the cost of scattered ids.
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
        """Of one among equal rows: which of them is which does not matter, so their order may change."""
        if ordinal:
            digest = hashlib.blake2b(b"%b%d" % (digest, ordinal), digest_size=SIZE, key=self.key).digest()
        return self._prefix + digest[:12].hex()


def write_token(write: str) -> str:
    """Short, and fit for a file's name."""
    return hashlib.blake2b(write.encode(), digest_size=8).hexdigest()


class Ordinals:
    """How many equal rows came before, for each row of a partition.

    A partition may be long, so 8 bytes are kept of each row, in sorted runs of which two of like size are merged.
    Counters are kept only for rows that came again.
    """

    def __init__(self) -> None:
        self._runs: list[Numbers] = []
        self._again: Counter[bytes] = Counter()

    def next(self, digests: Sequence[bytes]) -> list[int] | None:
        """None: none of these came before, nor twice here."""
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
            run = np.sort(np.concatenate((self._runs.pop(), run)), kind="stable")  # which merges what is sorted
        self._runs.append(run)
