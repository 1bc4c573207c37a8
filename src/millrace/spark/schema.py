"""The public tables: `jobs`, `events`, `dead` and `workers`.

Within a schema version, columns keep their name, position and type, and new columns are added at the end. Any other
change increments SCHEMA_VERSION. Instants are UTC, with the milliseconds of the store's clock.
"""

from __future__ import annotations

from millrace.domain.errors import InvalidInput, did_you_mean
from millrace.spark.table import Column, Table

SCHEMA_VERSION = 1

EVENTS = Table(
    "events",
    "every transition of every job, in the order of the feed within a partition",
    (
        Column("job", "string", "id of the job"),
        Column(
            "seq", "bigint", "sequence number of the job; (seq, n) identifies the event, as (job, generation, n) does"
        ),
        Column("generation", "int", "1 for the first job of this id, 2 when the id was enqueued again, …"),
        Column("n", "int", "number of the event within the generation: 1, 2, 3 …"),
        Column("kind", "string", "enqueued, claimed, completed, retried, … (docs/states.md)"),
        Column("at", "timestamp", "time of the event, by the store's clock"),
        Column("queue", "string", ""),
        Column("task", "string", ""),
        Column("state", "string", "state of the job after the transition"),
        Column("attempt", "int", "runs started so far"),
        Column("failures", "int", "counted failures so far"),
        Column("worker", "string", "the worker that held the job", nullable=True),
        Column("lease", "string", "the lease under which the worker held the job", nullable=True),
        Column("delay_ms", "bigint", "delay until the job may run again", nullable=True),
        Column("reason", "string", "why the job died or was cancelled", nullable=True),
        Column("error_type", "string", "", nullable=True),
        Column("error_message", "string", "", nullable=True),
        Column("error_traceback", "string", "", nullable=True),
        Column("duration_ms", "bigint", "duration of the run", nullable=True),
    ),
)

_WHO = (
    Column("id", "string", ""),
    Column("seq", "bigint", "sequence number; jobs enqueued later have higher numbers"),
    Column("generation", "int", "1 for the first job of this id"),
    Column("queue", "string", ""),
    Column("task", "string", ""),
)
_ERROR = (
    Column("reason", "string", "why the job died or was cancelled", nullable=True),
    Column("error_type", "string", "type of the last error", nullable=True),
    Column("error_message", "string", "", nullable=True),
    Column("error_traceback", "string", "", nullable=True),
)

JOBS = Table(
    "jobs",
    "every job there is, in any state, archived ones too",
    (
        *_WHO,
        Column("state", "string", "waiting, running, completed, dead or cancelled"),
        Column("priority", "int", "0 to 15, higher first"),
        Column("group", "string", "the group of the job", nullable=True),
        Column("key", "string", "the unique key of the job", nullable=True),
        Column("lane", "int", "the lane of the job in a pool", nullable=True),
        Column("enqueued_at", "timestamp", ""),
        Column("available_at", "timestamp", "when the job may run; in the future while it is delayed or in backoff"),
        Column("started_at", "timestamp", "start of the last run", nullable=True),
        Column("finished_at", "timestamp", "", nullable=True),
        Column("expires_at", "timestamp", "when the job expires if it has not started", nullable=True),
        Column("next_retry_at", "timestamp", "when a dead job is retried automatically", nullable=True),
        Column("attempt", "int", "runs started so far"),
        Column("failures", "int", "counted failures so far"),
        Column("max_attempts", "int", "number of failures after which the job is dead; null: no limit", nullable=True),
        Column("stalls", "int", "number of lost leases"),
        Column("snoozes", "int", ""),
        Column("releases", "int", ""),
        Column("replays", "int", ""),
        Column("auto_retries", "int", "number of automatic retries"),
        Column("events", "int", "number of events of this generation"),
        Column("blocked", "int", "number of parents that the job still waits for"),
        Column("after", "array<string>", "ids of the parents"),
        Column("worker", "string", "the worker that holds the job", nullable=True),
        Column("lease", "string", "", nullable=True),
        Column("lease_until", "timestamp", "", nullable=True),
        Column("timeout_ms", "bigint", "timeout of one run", nullable=True),
        Column("cancel_requested", "boolean", ""),
        Column("archived", "boolean", ""),
        *_ERROR,
        Column(
            "serde",
            "string",
            "serde of the payload; if the result has another serde, both names with a slash between them",
        ),
        Column("payload", "binary", "the encoded payload; with the serde json, cast(payload as string) is its text"),
        Column("result", "binary", "the encoded result; null if there is none or it is no longer kept", nullable=True),
        Column("result_until", "timestamp", "when the result expires", nullable=True),
        Column("progress", "binary", "the last progress that the handler reported", nullable=True),
        Column("headers", "map<string, string>", "", nullable=True),
        Column("tags", "array<string>", "words by which people find the job"),
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
        Column("started_at", "timestamp", "start of the last run", nullable=True),
        Column("died_at", "timestamp", "", nullable=True),
        Column("next_retry_at", "timestamp", "when the job is retried automatically", nullable=True),
        Column("attempt", "int", "runs started so far"),
        Column("failures", "int", "counted failures so far"),
        Column("stalls", "int", "number of lost leases"),
        Column("auto_retries", "int", "number of automatic retries"),
        *_ERROR,
        Column("fingerprint", "string", "equal for jobs that died for the same cause (millrace dead)"),
        Column("archived", "boolean", ""),
        Column(
            "attempts",
            "array<struct<attempt: int, at: timestamp, error_type: string, error_message: string, "
            "duration_ms: bigint, worker: string>>",
            "failed runs, oldest first; if there are very many, only the first and the last ones",
        ),
        Column("serde", "string", "serde of the payload"),
        Column("payload", "binary", "the encoded payload"),
        Column("tags", "array<string>", "words by which people find the job"),
    ),
)

WORKERS = Table(
    "workers",
    "the workers with a recent heartbeat",
    (
        Column("id", "string", ""),
        Column("host", "string", ""),
        Column("pid", "int", ""),
        Column("version", "string", "version of Millrace"),
        Column("queues", "array<string>", ""),
        Column("tasks", "array<string>", ""),
        Column("slots", "int", "number of jobs that the worker can run at once"),
        Column("running", "array<string>", "ids of the jobs that the worker runs"),
        Column("completed", "bigint", "number of jobs completed since the worker started"),
        Column("failed", "bigint", "number of jobs failed since the worker started"),
        Column("zombies", "int", "abandoned handlers that still run"),
        Column("started_at", "timestamp", ""),
        Column("last_beat", "timestamp", ""),
        Column("ttl_ms", "bigint", "a worker without a heartbeat for longer than this is not alive"),
        Column("alive", "boolean", ""),
    ),
)

TABLES = {table.name: table for table in (JOBS, EVENTS, DEAD, WORKERS)}


def table_named(name: str) -> Table:
    table = TABLES.get(name)
    if table is None:
        raise InvalidInput(f"there is no table {name!r}. {did_you_mean(name, TABLES)}")
    return table
