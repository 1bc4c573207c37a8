"""Every option of `format("millrace")`, in one table; docs/spark.md shows the same one.

Spark hands options over as text, in any case. Unknown ones are refused: a misspelt option that is ignored reads the
wrong thing. A URL with a secret in it is refused too, because options are shown in plans, logs and the UI.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.runtime.duration import milliseconds
from millrace.runtime.settings import masked

Use = Literal["batch", "stream", "write", "writeStream"]
READS: frozenset[Use] = frozenset({"batch", "stream"})
WRITES: frozenset[Use] = frozenset({"write", "writeStream"})
EVERYWHERE = READS | WRITES


def text(name: str, given: str) -> str:
    if not given.strip():
        raise InvalidInput(f"option {name} must not be empty")
    return given.strip()


def whole(name: str, given: str) -> int:
    if not re.fullmatch(r"\d{1,12}", given.strip(), re.ASCII) or int(given) < 1:
        raise InvalidInput(f"option {name} takes a whole number from 1 on, not {given!r}")
    return int(given)


def yes(name: str, given: str) -> bool:
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise InvalidInput(f"option {name} takes true or false, not {given!r}")
    return word == "true"


def names(name: str, given: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in given.split(","))
    if not all(found):
        raise InvalidInput(f"option {name} takes names between commas, not {given!r}")
    return found


def duration(name: str, given: str) -> str:
    """As text with its unit; a number alone is seconds, as everywhere."""
    written = given.strip()
    written = f"{written}s" if re.fullmatch(r"\d+(\.\d+)?", written, re.ASCII) else written
    milliseconds(f"option {name}", written)
    return written


def level(name: str, given: str) -> int:
    if not re.fullmatch(r"\d{1,2}", given.strip(), re.ASCII) or int(given) > 15:
        raise InvalidInput(f"option {name} takes a whole number from 0 to 15, not {given!r}; higher runs first")
    return int(given)


def one_of(*words: str) -> Callable[[str, str], str]:
    def word(name: str, given: str) -> str:
        if given.strip().lower() not in words:
            raise InvalidInput(f"option {name} takes one of {', '.join(words)}, not {given!r}")
        return given.strip().lower()

    return word


class Option(msgspec.Struct, frozen=True):
    name: str
    read: Callable[[str, str], Any]
    default: Any
    help: str
    uses: frozenset[Use] = EVERYWHERE

    @property
    def type(self) -> str:
        kinds = {"whole": "number", "level": "number", "yes": "true or false", "names": "names", "duration": "duration"}
        return kinds.get(self.read.__name__, "text")

    @property
    def said(self) -> str:
        """The default, as a user would write it."""
        return "" if self.default is None else f"`{str(self.default).lower()}`"


OPTIONS = (
    Option("url", text, None, "the store; a file must be absolute, and no secret may stand in it"),
    Option("urlEnv", text, None, "the environment variable that holds the URL, on driver and executors"),
    Option("urlFile", text, None, "the file that holds the URL, readable on driver and executors"),
    Option("table", text, None, "`jobs`, `events`, `dead` or `workers`; streams read `events`", READS),
    Option("columns", names, None, "only these columns, in this order; others are never read or built", READS),
    Option("partitions", whole, None, "at most so many tasks; by default as many as the data is worth", READS),
    Option(
        "pushFilters",
        yes,
        False,
        "let the source filter, where the session allows it (`spark.sql.python.filterPushdown.enabled`). Only for a "
        "DataFrame that is queried once: Spark 4.3 keeps the filters of one query for the next on the same `load()`",
        frozenset({"batch"}),
    ),
    Option("batchRows", whole, 10_000, "rows of one Arrow batch", READS),
    Option(
        "startingCursor",
        text,
        "earliest",
        "`earliest`, `latest` (streams), a cursor, or an instant such as 2026-11-15T12:00:00Z (table `events`)",
        READS,
    ),
    Option("endingCursor", text, None, "read no further than this cursor (table `events`)", frozenset({"batch"})),
    Option(
        "compacted",
        one_of("also", "only", "without"),
        None,
        "jobs that were [compacted into files](spark-upkeep.md): `also` is usual for `jobs` and `dead`; `only` of "
        "`events` is their history",
        frozenset({"batch"}),
    ),
    Option("maxEventsPerBatch", whole, None, "about so many events in one micro-batch", frozenset({"stream"})),
    Option(
        "failOnDataLoss",
        yes,
        True,
        "when retention has overtaken the stream: true fails and says how much is lost, false goes on from the oldest "
        "event kept",
        frozenset({"stream"}),
    ),
    Option("task", text, None, "the task of the jobs; without it, `taskColumn` names one for each row", WRITES),
    Option("taskColumn", text, None, "column: the task of the row; where it is null, that of `task`", WRITES),
    Option(
        "app", text, None, "`module:name` of the app: its tasks check the payloads, and their options apply", WRITES
    ),
    Option("payloadColumn", text, None, "column: the payload as JSON text, an object", WRITES),
    Option(
        "payloadColumns",
        names,
        None,
        "columns that make up the payload; by default all that no other option but `idColumns` names",
        WRITES,
    ),
    Option(
        "idColumns", names, None, "columns that identify a row: the same values, and the same task, are one job", WRITES
    ),
    Option(
        "writeId",
        text,
        None,
        "a name for this write: when it is done again under the same name, nothing is enqueued twice",
        frozenset({"write"}),
    ),
    Option("queue", text, None, "the queue; the task's own, or `default`", WRITES),
    Option("queueColumn", text, None, "column: the queue of the row; where it is null, that of `queue`", WRITES),
    Option("priority", level, None, "0 to 15; higher runs first", WRITES),
    Option("priorityColumn", text, None, "column: the priority, a whole number", WRITES),
    Option("delay", duration, None, "not before: `90` (seconds), `10m`, `2h`", WRITES),
    Option(
        "delayColumn", text, None, "column: the delay, as seconds, as text such as `10m`, or as an interval", WRITES
    ),
    Option("runAtColumn", text, None, "column: not before this instant, a timestamp", WRITES),
    Option("groupColumn", text, None, "column: the group; jobs of a group run one at a time, in order", WRITES),
    Option("keyColumn", text, None, "column: the unique key; null is none", WRITES),
    Option("keyScope", one_of("live", "window", "retained"), None, "how long a key is taken", WRITES),
    Option("keyWindow", duration, None, "how long, where `keyScope` is `window`", WRITES),
    Option("onHit", one_of("keep", "replace", "extend"), None, "what happens when the key is taken", WRITES),
    Option("headersColumn", text, None, "column: the headers, a map of texts", WRITES),
    Option("expires", duration, None, "dead if it has not begun by then", WRITES),
    Option("maxAttempts", whole, None, "runs before a job is dead", WRITES),
    Option("timeout", duration, None, "of one attempt", WRITES),
    Option(
        "onInvalid",
        one_of("fail", "reject"),
        "fail",
        "a row that cannot become a job: `fail` ends the write and names it, `reject` writes it to `rejectPath`",
        WRITES,
    ),
    Option("rejectPath", text, None, "directory of Parquet files: the rejected rows, each with its reason", WRITES),
    Option("batchSize", whole, 2_000, "jobs of one step into the store", WRITES),
    Option(
        "queueFullTimeout", duration, "10m", "how long a write waits for room in a full queue before it fails", WRITES
    ),
)


class Options(msgspec.Struct, frozen=True):
    """What was given, read and checked; the rest at its default."""

    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_options(given: Mapping[str, str], *uses: Use) -> Options:
    """Check and read what a user wrote. What it is used for decides which options there are."""
    here = {option.name.lower(): option for option in OPTIONS if option.uses & set(uses)}
    written = {name.lower(): value for name, value in given.items()}
    for name in written:
        if name not in here:
            raise InvalidInput(_stranger(name, set(uses)))
    values = {
        option.name: option.read(option.name, written[low]) if low in written else option.default
        for low, option in here.items()
    }
    _check_url(values)
    return Options(values)


def _stranger(name: str, uses: set[Use]) -> str:
    if name == "path":
        return "a store is no path: call load() without one, and name the store by option('url', …)"
    elsewhere = [option for option in OPTIONS if option.name.lower() == name]
    if elsewhere:
        here, there = (" and ".join(sorted(which)) for which in (uses, elsewhere[0].uses))
        return f"option {elsewhere[0].name} is for {there}, and does nothing for {here}. Leave it out"
    known = {option.name.lower(): option.name for option in OPTIONS if option.uses & uses}
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {known[close[0]]!r}?" if close else meant(name, known.values())
    return f'format("millrace") has no option {name!r}. {hint}'


def _check_url(values: Mapping[str, Any]) -> None:
    given = [name for name in ("url", "urlEnv", "urlFile") if values[name] is not None]
    if len(given) != 1:
        said = f"not {' and '.join(given)} together" if given else "none was given"
        raise InvalidInput(f"name the store by one of the options url, urlEnv and urlFile; {said}")
    url = values["url"]
    if url is not None and masked(url) != url:
        raise InvalidInput(
            f"there is a secret in the option url ({masked(url)}), and options are shown in plans and logs. Put the "
            "URL into an environment variable or a file, and name that by urlEnv or urlFile"
        )
