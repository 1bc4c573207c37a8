"""The options of `format("millrace")` in one table, which docs/spark.md shows too.

Spark passes options as text, with names in any case. Unknown options are refused: if a misspelt option were ignored,
the wrong data could be read. A URL with a secret is refused too, because options are shown in plans, logs and the UI.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from millrace.app.duration import milliseconds
from millrace.app.settings import masked
from millrace.domain.errors import InvalidInput, did_you_mean

Use = Literal["batch", "stream", "write", "writeStream"]
READS: frozenset[Use] = frozenset({"batch", "stream"})
WRITES: frozenset[Use] = frozenset({"write", "writeStream"})
EVERYWHERE = READS | WRITES


def text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidInput(f"option {name} must not be empty")
    return value.strip()


def whole(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,12}", value.strip(), re.ASCII) or int(value) < 1:
        raise InvalidInput(f"option {name} takes a whole number from 1 on, not {value!r}")
    return int(value)


def yes(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise InvalidInput(f"option {name} takes true or false, not {value!r}")
    return word == "true"


def names(name: str, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise InvalidInput(f"option {name} takes names between commas, not {value!r}")
    return found


def duration(name: str, value: str) -> str:
    """Return a duration as text with its unit. A number alone means seconds. Raises InvalidInput for other text."""
    written = value.strip()
    written = f"{written}s" if re.fullmatch(r"\d+(\.\d+)?", written, re.ASCII) else written
    milliseconds(f"option {name}", written)
    return written


def level(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,2}", value.strip(), re.ASCII) or int(value) > 15:
        raise InvalidInput(f"option {name} takes a whole number from 0 to 15, not {value!r}; higher runs first")
    return int(value)


def one_of(*words: str) -> Callable[[str, str], str]:
    def word(name: str, value: str) -> str:
        if value.strip().lower() not in words:
            raise InvalidInput(f"option {name} takes one of {', '.join(words)}, not {value!r}")
        return value.strip().lower()

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
        """The default as it is written in the documentation; empty if there is none."""
        return "" if self.default is None else f"`{str(self.default).lower()}`"


OPTIONS = (
    Option("url", text, None, "the store; a file path must be absolute, and the URL must not contain a secret"),
    Option("urlEnv", text, None, "name of the environment variable with the URL, on driver and executors"),
    Option("urlFile", text, None, "path of the file with the URL, readable on driver and executors"),
    Option("table", text, None, "`jobs`, `events`, `dead` or `workers`; streams read `events` or `jobs`", READS),
    Option("columns", names, None, "only these columns, in this order; other columns are not read", READS),
    Option(
        "partitions", whole, None, "maximum number of Spark tasks; by default it depends on the amount of data", READS
    ),
    Option(
        "pushFilters",
        yes,
        False,
        "let the source apply filters, if `spark.sql.python.filterPushdown.enabled` is set in the session. Use it "
        "only for a DataFrame that you query once: Spark 4.3 keeps the filters of one query for the next on the same "
        "`load()`",
        frozenset({"batch"}),
    ),
    Option("batchRows", whole, 10_000, "rows per Arrow batch", READS),
    Option(
        "startingCursor",
        text,
        "earliest",
        "`earliest`, `latest` (streams), a cursor, or an instant such as 2026-11-15T12:00:00Z (table `events`, and "
        "streams)",
        READS,
    ),
    Option("endingCursor", text, None, "cursor at which to stop reading (table `events`)", frozenset({"batch"})),
    Option(
        "compacted",
        one_of("also", "only", "without"),
        None,
        "whether to read jobs that were [compacted into files](spark-upkeep.md): `also` (default of `jobs` and "
        "`dead`), `only` or `without`; with `only`, `events` reads their history",
        frozenset({"batch"}),
    ),
    Option(
        "maxEventsPerTrigger",
        whole,
        None,
        "approximate maximum number of events per micro-batch; by default 100,000 for the table `jobs`, else no limit",
        frozenset({"stream"}),
    ),
    Option(
        "failOnDataLoss",
        yes,
        True,
        "what to do if retention removed unread events: true fails and says how many are lost, false continues from "
        "the oldest event kept",
        frozenset({"stream"}),
    ),
    Option("task", text, None, "the task of all rows; or use `taskColumn`", WRITES),
    Option("taskColumn", text, None, "column with the task of the row; if null, `task` applies", WRITES),
    Option(
        "app", text, None, "`module:name` of the app: its tasks validate the payloads, and their options apply", WRITES
    ),
    Option("payloadColumn", text, None, "column with the payload, a JSON object as text", WRITES),
    Option(
        "payloadColumns",
        names,
        None,
        "columns that form the payload; by default the columns of `idColumns` and all that no other option names",
        WRITES,
    ),
    Option(
        "idColumns",
        names,
        None,
        "columns that identify a row: rows with the same values and the same task become one job",
        WRITES,
    ),
    Option(
        "writeId",
        text,
        None,
        "name of this write: repeating it under the same name enqueues nothing twice",
        frozenset({"write"}),
    ),
    Option("queue", text, None, "the queue; by default that of the task, else `default`", WRITES),
    Option("queueColumn", text, None, "column with the queue of the row; if null, `queue` applies", WRITES),
    Option("priority", level, None, "0 to 15; higher runs first", WRITES),
    Option("priorityColumn", text, None, "column with the priority, an integer", WRITES),
    Option("delay", duration, None, "delay before the job may run: `90` (seconds), `10m`, `2h`", WRITES),
    Option("delayColumn", text, None, "column with the delay: seconds, text such as `10m`, or an interval", WRITES),
    Option("runAtColumn", text, None, "column with the earliest time to run, a timestamp", WRITES),
    Option("groupColumn", text, None, "column with the group; jobs of a group run one at a time, in order", WRITES),
    Option("keyColumn", text, None, "column with the unique key; null means no key", WRITES),
    Option(
        "keyScope",
        one_of("live", "window", "retained"),
        None,
        "how long a key is held: `live`, `window` or `retained`",
        WRITES,
    ),
    Option("keyWindow", duration, None, "how long a key is held with `keyScope` `window`", WRITES),
    Option(
        "onHit",
        one_of("keep", "replace", "extend"),
        None,
        "what to do if another job holds the key: `keep`, `replace` or `extend`",
        WRITES,
    ),
    Option("headersColumn", text, None, "column with the headers, a map of strings", WRITES),
    Option("expires", duration, None, "time after which a job that has not started becomes dead", WRITES),
    Option("maxAttempts", whole, None, "number of failures after which a job is dead", WRITES),
    Option("timeout", duration, None, "timeout of one attempt", WRITES),
    Option(
        "onInvalid",
        one_of("fail", "reject"),
        "fail",
        "an invalid row: `fail` stops the write with an error, `reject` writes the row to `rejectPath`",
        WRITES,
    ),
    Option("rejectPath", text, None, "directory for Parquet files with the rejected rows and their reasons", WRITES),
    Option("batchSize", whole, 2_000, "jobs per enqueue call", WRITES),
    Option(
        "queueFullTimeout", duration, "10m", "how long a write waits for room in a full queue before it fails", WRITES
    ),
)


class SourceOptions(msgspec.Struct, frozen=True):
    """The options of a read or a write, parsed and checked. Options that were not given have their defaults."""

    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_options(given: Mapping[str, str], *uses: Use) -> SourceOptions:
    """Parse and check the options of a user, and return them. Raises InvalidInput for an option that none of `uses`
    allows.
    """
    here = {option.name.lower(): option for option in OPTIONS if option.uses & set(uses)}
    written = {name.lower(): value for name, value in given.items()}
    for name in written:
        if name not in here:
            raise InvalidInput(_unknown_option(name, set(uses)))
    values = {
        option.name: option.read(option.name, written[low]) if low in written else option.default
        for low, option in here.items()
    }
    _check_url(values)
    return SourceOptions(values)


def _unknown_option(name: str, uses: set[Use]) -> str:
    if name == "path":
        return "a store is no path: call load() without one, and name the store by option('url', …)"
    elsewhere = [option for option in OPTIONS if option.name.lower() == name]
    if elsewhere:
        here, there = (" and ".join(sorted(which)) for which in (uses, elsewhere[0].uses))
        return f"option {elsewhere[0].name} is for {there}, and does nothing for {here}. Remove it"
    known = {option.name.lower(): option.name for option in OPTIONS if option.uses & uses}
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {known[close[0]]!r}?" if close else did_you_mean(name, known.values())
    return f'format("millrace") has no option {name!r}. {hint}'


def _check_url(values: Mapping[str, Any]) -> None:
    named = [name for name in ("url", "urlEnv", "urlFile") if values[name] is not None]
    if len(named) != 1:
        problem = f"not {' and '.join(named)} together" if named else "none was given"
        raise InvalidInput(f"name the store by one of the options url, urlEnv and urlFile; {problem}")
    url = values["url"]
    if url is not None and masked(url) != url:
        raise InvalidInput(
            f"there is a secret in the option url ({masked(url)}), and options are shown in plans and logs. Put the "
            "URL into an environment variable or a file, and name that by urlEnv or urlFile"
        )
