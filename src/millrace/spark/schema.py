"""The tables as published: `jobs`, `events`, `dead` and `workers`.

Within a version a column is never renamed, moved or given another type, and new ones come last; SCHEMA_VERSION grows
when that cannot be kept. Instants are UTC; they have the milliseconds of the store's clock.
"""

from __future__ import annotations

from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.spark.table import Column, Table

SCHEMA_VERSION = 1

EVENTS = Table(
    "events",
    "every transition of every job, in the order of the feed within a partition",
    (
        Column("job", "string", "id of the job"),
        Column("seq", "bigint", "number of the enqueue; with `n` it names the event, as (job, generation, n) does"),
        Column("generation", "int", "1 for the first job of this id, 2 when the id was enqueued again, …"),
        Column("n", "int", "1, 2, 3 … within the generation"),
        Column("kind", "string", "enqueued, claimed, completed, retried, … (docs/states.md)"),
        Column("at", "timestamp", "when, by the store's clock"),
        Column("queue", "string", ""),
        Column("task", "string", ""),
        Column("state", "string", "after the transition"),
        Column("attempt", "int", "runs begun so far"),
        Column("failures", "int", "counted failures so far"),
        Column("worker", "string", "who held it", nullable=True),
        Column("lease", "string", "the lease under which it was held", nullable=True),
        Column("delay_ms", "bigint", "until it may run again", nullable=True),
        Column("reason", "string", "why it died, or was cancelled", nullable=True),
        Column("error_type", "string", "", nullable=True),
        Column("error_message", "string", "", nullable=True),
        Column("error_traceback", "string", "", nullable=True),
        Column("duration_ms", "bigint", "how long the run took", nullable=True),
    ),
)

_WHO = (
    Column("id", "string", ""),
    Column("seq", "bigint", "number of the enqueue: older jobs have lower ones"),
    Column("generation", "int", "1 for the first job of this id"),
    Column("queue", "string", ""),
    Column("task", "string", ""),
)
_ERROR = (
    Column("reason", "string", "why it died, or was cancelled", nullable=True),
    Column("error_type", "string", "of the last failure", nullable=True),
    Column("error_message", "string", "", nullable=True),
    Column("error_traceback", "string", "", nullable=True),
)

JOBS = Table(
    "jobs",
    "every job there is, in any state, archived ones too",
    (
        *_WHO,
        Column("state", "string", "waiting, running, completed, dead or cancelled"),
        Column("priority", "int", "higher goes first"),
        Column("group", "string", "its group, if it has one", nullable=True),
        Column("key", "string", "its unique key, if it has one", nullable=True),
        Column("lane", "int", "its lane, in a pool", nullable=True),
        Column("enqueued_at", "timestamp", ""),
        Column("available_at", "timestamp", "when it may run; in the future while it is delayed or in backoff"),
        Column("started_at", "timestamp", "of the last run", nullable=True),
        Column("finished_at", "timestamp", "", nullable=True),
        Column("expires_at", "timestamp", "dead by then unless it has begun", nullable=True),
        Column("next_retry_at", "timestamp", "when a dead job is brought back by itself", nullable=True),
        Column("attempt", "int", "runs begun so far"),
        Column("failures", "int", "counted failures so far"),
        Column("max_attempts", "int", "failures at which it dies; null: never", nullable=True),
        Column("stalls", "int", "leases that were lost"),
        Column("snoozes", "int", ""),
        Column("releases", "int", ""),
        Column("replays", "int", ""),
        Column("auto_retries", "int", "times it was brought back by itself"),
        Column("events", "int", "events of this generation"),
        Column("blocked", "int", "parents it still waits for"),
        Column("after", "array<string>", "ids of its parents"),
        Column("worker", "string", "who holds it", nullable=True),
        Column("lease", "string", "", nullable=True),
        Column("lease_until", "timestamp", "", nullable=True),
        Column("timeout_ms", "bigint", "of one run", nullable=True),
        Column("cancel_requested", "boolean", ""),
        Column("archived", "boolean", ""),
        *_ERROR,
        Column("serde", "string", "how payload and result are encoded"),
        Column("payload", "binary", "as it was encoded; with serde json it is text: cast(payload as string)"),
        Column("result", "binary", "likewise; null when there is none, or it is no longer kept", nullable=True),
        Column("result_until", "timestamp", "how long it is kept", nullable=True),
        Column("progress", "binary", "what the handler last said of it", nullable=True),
        Column("headers", "map<string, string>", "", nullable=True),
    ),
)

DEAD = Table(
    "dead",
    "the dead letters, with what each attempt died of",
    (
        *_WHO,
        Column("priority", "int", ""),
        Column("group", "string", "", nullable=True),
        Column("key", "string", "", nullable=True),
        Column("enqueued_at", "timestamp", ""),
        Column("started_at", "timestamp", "of the last run", nullable=True),
        Column("died_at", "timestamp", "", nullable=True),
        Column("next_retry_at", "timestamp", "when it is brought back by itself", nullable=True),
        Column("attempt", "int", "runs begun"),
        Column("failures", "int", "counted failures"),
        Column("stalls", "int", "leases that were lost"),
        Column("auto_retries", "int", "times it was brought back by itself"),
        *_ERROR,
        Column("fingerprint", "string", "equal for jobs that died of the same cause (millrace dead)"),
        Column("archived", "boolean", ""),
        Column(
            "attempts",
            "array<struct<attempt: int, at: timestamp, error_type: string, error_message: string, "
            "duration_ms: bigint, worker: string>>",
            "failed runs, oldest first; the first and the last ones where there are very many",
        ),
        Column("serde", "string", "how the payload is encoded"),
        Column("payload", "binary", "as it was encoded"),
    ),
)

WORKERS = Table(
    "workers",
    "the workers that have said something of late",
    (
        Column("id", "string", ""),
        Column("host", "string", ""),
        Column("pid", "int", ""),
        Column("version", "string", "of Millrace"),
        Column("queues", "array<string>", ""),
        Column("tasks", "array<string>", ""),
        Column("slots", "int", "jobs it can run at once"),
        Column("running", "array<string>", "ids of the jobs it runs"),
        Column("completed", "bigint", "since it started"),
        Column("failed", "bigint", "since it started"),
        Column("zombies", "int", "handlers that were given up and still run"),
        Column("started_at", "timestamp", ""),
        Column("last_beat", "timestamp", ""),
        Column("ttl_ms", "bigint", "silent for longer: not alive"),
        Column("alive", "boolean", ""),
    ),
)

TABLES = {table.name: table for table in (JOBS, EVENTS, DEAD, WORKERS)}


def table_named(name: str) -> Table:
    table = TABLES.get(name)
    if table is None:
        raise InvalidInput(f"there is no table {name!r}. {meant(name, TABLES)}")
    return table
