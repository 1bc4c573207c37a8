"""The reject table: Parquet files with the rows that could not become jobs, each with its reason.

Each Spark task writes its own file, under a name that Spark's readers ignore. When the whole write is committed, the
file gets a name derived from the write and the partition. So there is only one such file, even if the task ran twice or
the micro-batch was repeated.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from millrace.domain.errors import InvalidInput, StoreError
from millrace.spark.sink.ids import write_token

REASON, WRITE = "reject_reason", "reject_write"


class RejectFolder:
    """The directory of the option `rejectPath`: a local path, or a URL of any file system that pyarrow supports."""

    def __init__(self, path: str) -> None:
        if "://" in path:
            try:
                self._system, self._root = fs.FileSystem.from_uri(path)
            except (pa.ArrowException, ValueError, OSError) as error:
                raise InvalidInput(f"rejectPath {path!r} cannot be used: {error}") from None
        elif os.path.isabs(path):
            self._system, self._root = fs.LocalFileSystem(), path
        else:
            raise InvalidInput(
                f"rejectPath {path!r} depends on the working directory, which is another one in each of Spark's "
                f"processes. Write the absolute path: {os.path.abspath(path)}"
            )

    def pending(self, write: str) -> str:
        return f"{self._root}/_pending-{write_token(write)}"

    def open(self, write: str, partition: int) -> Rejects:
        return Rejects(self._system, f"{self.pending(write)}/{partition}-{secrets.token_hex(8)}.parquet", write)

    def publish(self, write: str, files: Mapping[int, str]) -> None:
        """Publish the files, one for each partition. Remove the files of other partitions that an earlier attempt of
        this write published. Raises StoreError if the file system refuses.
        """
        mine = f"rejected-{write_token(write)}-"
        names = {f"{mine}{partition:06}.parquet": file for partition, file in files.items()}
        try:
            for name, file in names.items():
                self._system.move(file, f"{self._root}/{name}")
            for found in self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
                if found.base_name.startswith(mine) and found.base_name not in names:
                    self._system.delete_file(found.path)
            self.forget(write)
        except OSError as error:
            raise StoreError(
                f"the jobs are in, but the rejected rows could not be published in {self._root}: {error}. They are in "
                f"{self.pending(write)}"
            ) from None

    def forget(self, write: str) -> None:
        """Delete the unpublished files of the write."""
        if self._system.get_file_info(self.pending(write)).type is not fs.FileType.NotFound:
            self._system.delete_dir(self.pending(write))


class Rejects:
    """The reject file of one execution of a Spark task. The file is created with the first rejected row."""

    def __init__(self, system: fs.FileSystem, path: str, write: str) -> None:
        self.rows = 0
        self._system = system
        self._path = path
        self._write = write
        self._writer: pq.ParquetWriter | None = None

    @property
    def path(self) -> str | None:
        return None if self._writer is None else self._path

    def add(self, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        taken = rows.take(pa.array(list(reasons), pa.int64()))
        said = pa.array(list(reasons.values()), pa.string())
        named = pa.array([self._write] * len(reasons), pa.string())
        table = pa.table([*taken.columns, said, named], names=[*rows.schema.names, REASON, WRITE])
        if self._writer is None:
            self._system.create_dir(self._path.rpartition("/")[0], recursive=True)
            self._writer = pq.ParquetWriter(self._path, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self.rows += len(reasons)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def refuse_taken_names(names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in (REASON, WRITE):
            raise InvalidInput(f"rejected rows get a column {name!r}, and there is one already. Rename yours")
