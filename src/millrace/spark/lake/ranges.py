"""Which files of a table a take rewrites, and how the rows are divided into new files, for tables divided by `seq`.

Each file of such a table contains a range of `seq`. A take rewrites only the files that may contain a job with new
events. So its cost does not depend on the size of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column
from pyspark.sql import functions as F

from millrace.spark.lake.delta import DataFile

ROWS_PER_FILE = 250_000
MANY = 16  # small files that are rewritten together
Seqs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RangePlan:
    """`replaced` are the files to rewrite. `bounds` are the lowest values of `seq` of all new files but the first."""

    replaced: list[DataFile]
    bounds: list[int]

    def number(self) -> Column:
        """Return the column with the number of the file for each row."""
        return _number(self.bounds, 0, len(self.bounds))


def plan(files: Sequence[DataFile], touched: Seqs) -> RangePlan:
    """Plan the merge of the jobs `touched` (sorted) into the files of a table."""
    small = [file for file in files if file.rows < ROWS_PER_FILE // 4]
    crowded = small if len(small) >= MANY else []
    replaced = [file for file in files if file in crowded or _has_any(file, touched)]
    starts, weights = _weights(replaced, touched)
    order = np.argsort(starts, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    new = np.flatnonzero(np.diff(before // ROWS_PER_FILE)) + 1
    return RangePlan(replaced, sorted({int(bound) for bound in starts[order][new]}))


def _weights(replaced: Sequence[DataFile], touched: Seqs) -> tuple[Seqs, Seqs]:
    """Return values of `seq`, and about how many rows follow each. A job in the range of a replaced file is taken for
    one of its rows. The rows of a file that has grown too large are taken to be spread evenly.
    """
    starts, weights = [], []
    new = np.ones(len(touched), np.bool_)
    for file in replaced:
        if file.seqs is not None:
            low, high = file.seqs
            new &= (touched < low) | (touched > high)
            pieces = max(1, -(-file.rows // ROWS_PER_FILE))
            starts += [low + (high - low) * piece // pieces for piece in range(pieces)]
            weights += [-(-file.rows // pieces)] * pieces
    alone = touched[new]
    return np.concatenate([np.asarray(starts, np.int64), alone]), np.concatenate(
        [np.asarray(weights, np.int64), np.ones(len(alone), np.int64)]
    )


def _has_any(file: DataFile, touched: Seqs) -> bool:
    if file.seqs is None:  # no statistics
        return True
    low, high = file.seqs
    return bool(np.searchsorted(touched, low, "left") < np.searchsorted(touched, high, "right"))


def _number(bounds: Sequence[int], first: int, last: int) -> Column:
    """Return a binary search in the bounds, as nested conditions."""
    if first == last:
        return F.lit(first)
    middle = (first + last) // 2
    return F.when(F.col("seq") < bounds[middle], _number(bounds, first, middle)).otherwise(
        _number(bounds, middle + 1, last)
    )
