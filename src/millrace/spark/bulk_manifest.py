"""The manifest of a bulk operation: the selected jobs, the progress, and the answer for each job.

A manifest is an append-only file of JSON lines. It begins with the request and the selected jobs. Then each chunk of
jobs adds a line that marks its start, and one answer per job, in the order of the selection. If the process is killed,
the outcome of at most one chunk is unknown; the process that continues checks the jobs of this chunk before it acts.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from millrace.domain.errors import InvalidInput, QueueError

SAMPLE = 10
LINES = 1_000  # lines per write while jobs are selected


class ManifestLine(msgspec.Struct, frozen=True, tag_field="is", omit_defaults=True):
    pass


class BulkRequest(ManifestLine, frozen=True, tag="operation"):
    """The request of a bulk operation: the first line of its manifest. A manifest cannot be used for a different
    request.
    """

    operation: str
    store: str
    where: str
    at: str
    table: str = "jobs"
    limit: int | None = None
    also_running: bool = False

    def differs(self, other: BulkRequest) -> str | None:
        """Return the name of the first field in which the requests differ, or None. The time `at` is not compared."""
        names = (name for name in self.__struct_fields__ if name != "at")
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)


class Planned(ManifestLine, frozen=True, tag="planned"):
    id: str
    seq: int
    queue: str
    task: str
    state: str
    error: str | None = None
    finished_ms: int | None = None
    replays: int | None = None


class Selected(ManifestLine, frozen=True, tag="selected"):
    """The line that ends the selection. No job is changed before this line is in the manifest."""

    jobs: int


class Begun(ManifestLine, frozen=True, tag="begun"):
    """The line that marks the start of a chunk. The chunk ends with the selected job number `until`, counted from 1."""

    until: int


class Answered(ManifestLine, frozen=True, tag="answered"):
    """The answer for one job. `state` is the job's state when it was selected."""

    id: str
    seq: int
    state: str
    answer: str
    at: str


class ManifestEnd(ManifestLine, frozen=True, tag="ended"):
    jobs: int
    at: str


AnyLine = BulkRequest | Planned | Selected | Begun | Answered | ManifestEnd
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)
_encoder = msgspec.json.Encoder()


class NotAManifest(InvalidInput):
    """The file is not the manifest of a bulk operation."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(
            f"{path} is not a manifest of a bulk operation (line {line}); it was left as it is. Name a new file"
        )


class ManifestBusy(QueueError):
    """Another run uses the manifest."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another run. Wait until it has ended, or name another file")


class ManifestTally:
    """The counts of a manifest, and a sample of its jobs."""

    def __init__(self) -> None:
        self.request: BulkRequest | None = None
        self.kinds: Counter[tuple[str, str, str]] = Counter()  # jobs by queue, task and state
        self.sample: list[Planned] = []
        self.jobs = 0
        self.selected = False
        self.begun = 0
        self.answers: Counter[str] = Counter()
        self.ended = False

    @property
    def answered(self) -> int:
        return self.answers.total()

    @property
    def left(self) -> int:
        return self.jobs - self.answered

    def add(self, line: AnyLine) -> None:
        match line:
            case Planned():
                self.jobs += 1
                self.kinds[line.queue, line.task, line.state] += 1
                if len(self.sample) < SAMPLE:
                    self.sample.append(line)
            case Answered():
                self.answers[line.answer] += 1
            case BulkRequest():
                self.request = line
            case Selected():
                self.selected = True
            case Begun():
                self.begun = max(self.begun, line.until)  # a resumed run may use smaller batches
            case ManifestEnd():
                self.ended = True


class BulkManifest:
    """A manifest opened by `opened_manifest`; this process is its only writer."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        self.tally = ManifestTally()

    def select(self, request: BulkRequest, jobs: Iterable[Planned]) -> None:
        """Record the request and the selected jobs."""
        self._write([request])
        rest = iter(jobs)
        while part := list(islice(rest, LINES)):
            self._write(part)
        self._write([Selected(self.tally.jobs)])
        self._keep()

    def pending(self) -> Iterator[Planned]:
        """Yield the jobs without an answer, in order."""
        with open(self.path, "rb") as file:
            yield from islice(_planned(file), self.tally.answered, None)

    def begin(self, jobs: int) -> None:
        self._write([Begun(self.tally.answered + jobs)])
        self._keep()

    def answer(self, lines: Sequence[Answered]) -> None:
        self._write(lines)
        self._keep()

    def end(self, at: str) -> None:
        self._write([ManifestEnd(self.tally.jobs, at)])
        self._keep()

    def discard(self) -> None:
        """Delete the file. Used when an operation is given up before it has changed anything."""
        self.path.unlink(missing_ok=True)

    def _write(self, lines: Sequence[AnyLine]) -> None:
        data = memoryview(_encoder.encode_lines(lines))
        while data:
            data = data[os.write(self._file, data) :]
        for line in lines:
            self.tally.add(line)

    def _keep(self) -> None:
        os.fsync(self._file)

    def load(self) -> None:
        """Read the file into the tally. An incomplete last line is cut off; an incomplete selection is removed
        completely.
        """
        whole = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and number > 1:
                    break
                self.tally.add(_decoded(line, self.path, number))
                whole += len(line)
        if self.tally.request is not None and not self.tally.selected:
            whole, self.tally = 0, ManifestTally()
        os.ftruncate(self._file, whole)


@contextmanager
def opened_manifest(path: Path) -> Iterator[BulkManifest]:
    """Open the manifest at `path` under an exclusive lock, or create it. Raises ManifestBusy if another process has the
    lock.
    """
    file = _locked(path)
    try:
        made = BulkManifest(path, file)
        made.load()
        yield made
    finally:
        os.close(file)


def _locked(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(f"the manifest {path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise ManifestBusy(path) from None
    if not os.fstat(file).st_nlink:  # its owner has just deleted it
        os.close(file)
        raise ManifestBusy(path)
    return file


def _planned(lines: Iterable[bytes]) -> Iterator[Planned]:
    for line in lines:
        found = _decoder.decode(line)
        if isinstance(found, Planned):
            yield found
        elif isinstance(found, Selected):
            return


def _decoded(line: bytes, path: Path, number: int) -> AnyLine:
    try:
        found = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotAManifest(path, number) from None
    if isinstance(found, BulkRequest) != (number == 1) or not line.endswith(b"\n"):
        raise NotAManifest(path, number)
    return found
