"""The manifest of a bulk operation: which jobs it is to act on, how far it is, and what came of each.

A file of JSON lines that only grows: what was asked for, every job that was selected, then batch by batch a word that
it is begun and an answer for each job, in the same order. A run that is killed leaves at most one batch of which
nobody knows whether it was done; the next run looks at those jobs before it acts.
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
LINES = 1_000  # written at once while jobs are selected


class Line(msgspec.Struct, frozen=True, tag_field="is", omit_defaults=True):
    pass


class Asked(Line, frozen=True, tag="operation"):
    """What was asked for. The same manifest is never used for anything else."""

    operation: str
    store: str
    where: str
    at: str
    table: str = "jobs"
    limit: int | None = None
    also_running: bool = False

    def differs(self, other: Asked) -> str | None:
        """In which field, if in any but the time."""
        names = (name for name in self.__struct_fields__ if name != "at")
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)


class Planned(Line, frozen=True, tag="planned"):
    id: str
    seq: int
    queue: str
    task: str
    state: str
    error: str | None = None
    finished_ms: int | None = None
    replays: int | None = None


class Selected(Line, frozen=True, tag="selected"):
    """All were selected; without this line none is acted on."""

    jobs: int


class Begun(Line, frozen=True, tag="begun"):
    """The jobs up to this one, counted from 1, are being acted on."""

    until: int


class Answered(Line, frozen=True, tag="answered"):
    """`state` is the one before."""

    id: str
    seq: int
    state: str
    answer: str
    at: str


class Ended(Line, frozen=True, tag="ended"):
    jobs: int
    at: str


AnyLine = Asked | Planned | Selected | Begun | Answered | Ended
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)
_encoder = msgspec.json.Encoder()


class NotAManifest(InvalidInput):
    def __init__(self, path: Path, line: int) -> None:
        super().__init__(
            f"{path} is not a manifest of a bulk operation (line {line}); it was left as it is. Name a new file"
        )


class ManifestBusy(QueueError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another run. Wait until it has ended, or name another file")


class Tally:
    """What a manifest says, without the jobs themselves."""

    def __init__(self) -> None:
        self.asked: Asked | None = None
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
            case Asked():
                self.asked = line
            case Selected():
                self.selected = True
            case Begun():
                self.begun = max(self.begun, line.until)  # a run that goes on may take smaller batches
            case Ended():
                self.ended = True


class Manifest:
    """Made by `opened_manifest`; this process is its only writer."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        self.tally = Tally()

    def select(self, asked: Asked, jobs: Iterable[Planned]) -> None:
        """Write down what is to be done, and to which jobs."""
        self._write([asked])
        rest = iter(jobs)
        while part := list(islice(rest, LINES)):
            self._write(part)
        self._write([Selected(self.tally.jobs)])
        self._keep()

    def pending(self) -> Iterator[Planned]:
        """The jobs without an answer, in order."""
        with open(self.path, "rb") as file:
            yield from islice(_planned(file), self.tally.answered, None)

    def begin(self, jobs: int) -> None:
        self._write([Begun(self.tally.answered + jobs)])
        self._keep()

    def answer(self, lines: Sequence[Answered]) -> None:
        self._write(lines)
        self._keep()

    def end(self, at: str) -> None:
        self._write([Ended(self.tally.jobs, at)])
        self._keep()

    def discard(self) -> None:
        """Nothing was done, and nothing shall be."""
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
        """Read what is there. A line that was cut off in the middle never counted, nor did half a selection."""
        whole = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and number > 1:
                    break
                self.tally.add(_decoded(line, self.path, number))
                whole += len(line)
        if self.tally.asked is not None and not self.tally.selected:
            whole, self.tally = 0, Tally()
        os.ftruncate(self._file, whole)


@contextmanager
def opened_manifest(path: Path) -> Iterator[Manifest]:
    """The manifest at `path`, new or with what is in it. Nobody else has it meanwhile."""
    file = _locked(path)
    try:
        made = Manifest(path, file)
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
    if not os.fstat(file).st_nlink:  # discarded by its owner in this very moment
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
    if isinstance(found, Asked) != (number == 1) or not line.endswith(b"\n"):
        raise NotAManifest(path, number)
    return found
