"""The directory of a lake: its lock, the publication of pipeline runs, and the removal of files that crashed runs left.

_millrace/lock                  held by the writer
_millrace/runs/NNNNNNNN.json    the manifests
data/NNNNNNNN-xxxxxxxx/         the files of one pipeline run, never changed after they were published
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from millrace.app.local_path import local_path
from millrace.spark.lake.errors import LakeBroken, LakeBusy, LakeTooNew, LostTheRace, NoLake, NotALake
from millrace.spark.lake.manifest import FORMAT, VERSION, Head, LakeManifest

GRACE = 15 * 60.0  # seconds that a replaced file is kept for current readers
KEPT_MANIFESTS = 50
_RUN = re.compile(r"(\d{8})\.json")
_OF_A_RUN = re.compile(r"\d{8}-[0-9a-f]{8}")


class LakePlace:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path, "the lake").absolute()
        self._own = self.path / "_millrace"
        self.runs = self._own / "runs"
        self.data = self.path / "data"

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def latest(self) -> LakeManifest | None:
        """Return the newest manifest; None if nothing was published yet. Raises LakeTooNew or LakeBroken if the
        manifest cannot be read.
        """
        for _ in range(3):  # it may be removed between listing and reading, once there are newer ones
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                return self._read(numbers[-1])
            except FileNotFoundError:
                continue
        raise LakeBroken(f"the newest manifest in {self.runs} cannot be read: it comes and goes. Is it being removed?")

    def require(self) -> LakeManifest:
        found = self.latest()
        if found is None:
            raise NoLake(self.path)
        return found

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.runs)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _RUN.fullmatch(name)))

    def _read(self, run: int) -> LakeManifest:
        file = self.runs / f"{run:08}.json"
        raw = file.read_bytes()
        try:
            head = msgspec.json.decode(raw, type=Head)
            if head.format == FORMAT and head.version > VERSION:
                raise LakeTooNew(self.path, head.version, VERSION)
            return msgspec.json.decode(raw, type=LakeManifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise LakeBroken(f"{file} is damaged ({wrong}). Restore it, or build a new lake elsewhere") from None

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def writing(self) -> Iterator[LakeManifest | None]:
        """Lock the lake for writing, remove files of crashed pipeline runs, and yield the newest manifest (None if
        there is none).

        Raises NotALake if the directory holds other files, and LakeBusy if another process has the lock.
        """
        if not self._own.is_dir() and self.path.is_dir() and any(self.path.iterdir()):
            raise NotALake(self.path)
        self.runs.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(lock)
            newest = self.latest()
            self._sweep(newest)
            yield newest
        finally:
            os.close(lock)

    def _lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeBusy(self.path, _described(os.pread(lock, 200, 0))) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{socket.gethostname()} {os.getpid()}".encode(), 0)

    def directory_for(self, run: int) -> Path:
        """Create a directory for the files of a pipeline run, and return its path."""
        made = self.data / f"{run:08}-{secrets.token_hex(4)}"
        made.mkdir(parents=True)
        return made

    def publish(self, manifest: LakeManifest) -> None:
        """Publish the manifest, which adds all files of a pipeline run to the lake atomically. Raises LostTheRace if a
        manifest with this number exists already.
        """
        final = self.runs / f"{manifest.run:08}.json"
        draft = self.runs / f".{manifest.run:08}-{secrets.token_hex(4)}"
        with open(draft, "xb") as file:
            file.write(msgspec.json.encode(manifest))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, final)  # unlike a rename, it never overwrites
        except FileExistsError:
            raise LostTheRace(self.path, manifest.run) from None
        finally:
            draft.unlink()
        sync(self.runs)

    # ── tidying ───────────────────────────────────────────────────────────────────────────────

    def _sweep(self, newest: LakeManifest | None) -> None:
        """Remove old manifests, files of crashed pipeline runs, and files whose replacement is older than the grace
        period for readers.
        """
        numbers = self._numbers()
        for number in numbers[:-KEPT_MANIFESTS]:
            (self.runs / f"{number:08}.json").unlink(missing_ok=True)
        for draft in self.runs.glob(".*"):
            draft.unlink(missing_ok=True)
        if not self.data.is_dir():
            return
        kept = set() if newest is None else newest.paths
        recent = self._recently_replaced(numbers[-KEPT_MANIFESTS:])
        for directory in self.data.iterdir():
            if _OF_A_RUN.fullmatch(directory.name):
                self._sweep_run(directory, kept, recent)

    def _recently_replaced(self, numbers: list[int]) -> set[str]:
        """Return the files of every manifest that was the newest one at some time within the grace period for
        readers.
        """
        found: set[str] = set()
        since = (time.time() - GRACE) * 1000
        for number in reversed(numbers):
            manifest = self._read(number)
            found |= manifest.paths
            if manifest.at < since:
                break
        return found

    def _sweep_run(self, directory: Path, kept: set[str], recent: set[str]) -> None:
        names = [str(file.relative_to(self.path)) for file in directory.rglob("*.parquet")]
        if not any(name in kept or name in recent for name in names):
            shutil.rmtree(directory, ignore_errors=True)
            return
        for name in names:
            if name not in kept and name not in recent:
                (self.path / name).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush the content of a file, or the entries of a directory, to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _described(holder: bytes) -> str:
    host, _, process = holder.decode(errors="replace").partition(" ")
    return f" (process {process} on {host})" if process else ""
