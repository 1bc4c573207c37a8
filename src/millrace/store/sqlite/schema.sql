-- The tables of the SQLite store.
-- The job row has a short spec; a long one is in `body`, because every claim and settle rewrites the row.
-- The indexes are partial, so a plain job (no line, no key, no reply address) is in few of them.
-- In a SQLite record, 0, 1 and NULL take only a header byte, and most columns of a plain job are one of these.

-- One row: counters that never decrease, and the settings of the store.
CREATE TABLE millrace_store (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    version     INTEGER NOT NULL,            -- of this schema
    last_seq    INTEGER NOT NULL DEFAULT 0,  -- or that of the newest page of the feed, if it is greater
    last_event  INTEGER NOT NULL DEFAULT 0,  -- likewise
    last_due    INTEGER NOT NULL DEFAULT 0,  -- likewise; when the last job in order was due
    trimmed     INTEGER NOT NULL DEFAULT 0,  -- number of the newest event that retention deleted
    trimmed_mark TEXT NOT NULL DEFAULT '',   -- its mark, to check cursors that point right after it
    settings    BLOB
);
INSERT INTO millrace_store (one, version) VALUES (1, 4);

CREATE TABLE millrace_queue (
    id     INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    facts  BLOB NOT NULL                     -- QueueRow: settings, and counters that the newest page may replace
);

CREATE TABLE millrace_task (
    name   TEXT PRIMARY KEY,
    facts  BLOB NOT NULL                     -- TaskRow: limits and running counts
) WITHOUT ROWID;

-- One row per (queue, task, priority) ever used: a claim reads the ready index once for each.
CREATE TABLE millrace_combo (
    id        INTEGER PRIMARY KEY,
    queue     INTEGER NOT NULL,
    task      TEXT NOT NULL,
    priority  INTEGER NOT NULL,
    UNIQUE (queue, task, priority)
);

CREATE TABLE millrace_job (
    seq            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL,
    combo          INTEGER NOT NULL,
    queue          INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    enqueued_at    INTEGER NOT NULL,
    available_at   INTEGER NOT NULL,
    last_event     INTEGER NOT NULL,         -- cursor of its newest event; each event has the cursor of the one before
    open           INTEGER NOT NULL,         -- claimable as soon as it is due: 2 in order (see below), 1 otherwise
    state          INTEGER NOT NULL DEFAULT 0,  -- 0 waiting, 1 running, 2 completed, 3 dead, 4 cancelled
    events         INTEGER NOT NULL DEFAULT 1,
    attempt        INTEGER NOT NULL DEFAULT 0,
    failures       INTEGER NOT NULL DEFAULT 0,
    blocked        INTEGER NOT NULL DEFAULT 0,
    archived       INTEGER NOT NULL DEFAULT 0,
    place          INTEGER,                  -- in its line: 1 waiting in it, 2 holding it, 3 outside until due
    line           TEXT,
    rank           INTEGER,                  -- of a member of a line: -priority
    grp            TEXT,
    key            TEXT,
    reply          TEXT,                     -- address of the process that waits for this job's end
    started_at     INTEGER,
    finished_at    INTEGER,
    worker         TEXT,
    lease_id       TEXT,
    lease_until    INTEGER,
    expires_at     INTEGER,
    next_retry_at  INTEGER,
    result_until   INTEGER,
    extra          BLOB,                     -- all other fields, packed; NULL while they have their defaults
    result         BLOB,
    spec           BLOB                      -- never changed; NULL: it is in `body`
);
CREATE UNIQUE INDEX millrace_job_id ON millrace_job (id);
-- The open jobs of a combination that are in order become due in the order of their seqs: those enqueued without a
-- delay, unless the clock was set back. So a plain job is in one index while it waits.
CREATE INDEX millrace_job_waiting ON millrace_job (combo, open) WHERE state = 0;
CREATE INDEX millrace_job_lease ON millrace_job (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX millrace_job_ended ON millrace_job (combo, state) WHERE finished_at IS NOT NULL;
CREATE INDEX millrace_job_finished ON millrace_job (queue, finished_at) WHERE finished_at IS NOT NULL AND state <> 3;
CREATE INDEX millrace_job_result ON millrace_job (result_until) WHERE result_until IS NOT NULL;
-- Plain jobs are in none of the indexes below.
CREATE INDEX millrace_job_ready ON millrace_job (combo, available_at) WHERE open = 1;
CREATE INDEX millrace_job_dead ON millrace_job (queue, finished_at) WHERE state = 3;
CREATE INDEX millrace_job_dead_shown ON millrace_job (queue, finished_at) WHERE state = 3 AND archived = 0;
CREATE INDEX millrace_job_next_retry ON millrace_job (next_retry_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX millrace_job_retrying ON millrace_job (queue, available_at) WHERE state = 0 AND failures > 0 AND blocked = 0;
CREATE INDEX millrace_job_expires ON millrace_job (expires_at) WHERE expires_at IS NOT NULL AND state = 0;
CREATE INDEX millrace_job_outside ON millrace_job (available_at) WHERE place = 3;
CREATE INDEX millrace_job_outside_of ON millrace_job (queue, available_at) WHERE place = 3;
CREATE INDEX millrace_job_member ON millrace_job (queue, line, rank) WHERE place = 1;
CREATE INDEX millrace_job_aside ON millrace_job (queue, available_at) WHERE place IS NOT NULL AND open = 0;
CREATE INDEX millrace_job_group ON millrace_job (grp) WHERE grp IS NOT NULL;
CREATE INDEX millrace_job_key ON millrace_job (key) WHERE key IS NOT NULL;

-- The specs that are too long for the rows of their jobs.
CREATE TABLE millrace_body (
    seq   INTEGER PRIMARY KEY,
    spec  BLOB NOT NULL
);

-- When the jobs of a block of 1,024 seqs were enqueued: a search by time skips the other blocks.
CREATE TABLE millrace_span (
    block  INTEGER PRIMARY KEY,
    low    INTEGER NOT NULL,
    high   INTEGER NOT NULL
);

-- The feed, in pages: the events of one commit in order, at most 256 per page. The cursor of an event is its number.
-- The newest page also has counters of the store and of queues, so that most commits write no further row for them.
CREATE TABLE millrace_event (
    last      INTEGER PRIMARY KEY,
    first     INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,              -- a seq is never reused, even after its job is deleted
    last_due  INTEGER NOT NULL,
    counters  BLOB,                          -- of the queues that changed last, by their ids
    page      BLOB NOT NULL
);

-- Generations whose record is deleted.
CREATE TABLE millrace_past (
    seq         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    token       TEXT NOT NULL,
    gone_at     INTEGER NOT NULL,
    last_event  INTEGER NOT NULL
);
CREATE INDEX millrace_past_id ON millrace_past (id);
CREATE INDEX millrace_past_gone ON millrace_past (gone_at);

CREATE TABLE millrace_line (
    queue      INTEGER NOT NULL,
    name       TEXT NOT NULL,
    holder     INTEGER,
    open       INTEGER,
    waiting    INTEGER NOT NULL,
    live       INTEGER NOT NULL,
    processed  INTEGER NOT NULL,
    died       INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID;

CREATE TABLE millrace_hold (
    queue  TEXT NOT NULL,
    key    TEXT NOT NULL,
    owner  TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    scope  TEXT NOT NULL,
    until  INTEGER,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX millrace_hold_until ON millrace_hold (until) WHERE until IS NOT NULL;

CREATE TABLE millrace_dependency (
    n       INTEGER PRIMARY KEY,
    parent  TEXT NOT NULL,
    child   INTEGER NOT NULL
);
CREATE UNIQUE INDEX millrace_dependency_parent ON millrace_dependency (parent, child);
CREATE INDEX millrace_dependency_child ON millrace_dependency (child);

-- Every job with dependencies, by the ids it depends on, for as long as its record exists.
CREATE TABLE millrace_dependent (
    parent  TEXT NOT NULL,
    child   INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) WITHOUT ROWID;

CREATE TABLE millrace_worker (
    id      TEXT PRIMARY KEY,
    record  BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE millrace_schedule (
    name    TEXT PRIMARY KEY,
    record  BLOB NOT NULL,                   -- Schedule: definition, mark, revision
    due_at  INTEGER                          -- when any scheduler looks at it; NULL: only those of its app's code
) WITHOUT ROWID;
CREATE INDEX millrace_schedule_due ON millrace_schedule (due_at, name) WHERE due_at IS NOT NULL;
