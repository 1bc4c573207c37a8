-- Version 1 of the PostgreSQL store: tables.
-- A plain job (on the fast path: no line, no key, no hook) has a row in `job` and one in `ready`. A claim moves it from
-- `ready` to `lease`. Its end updates `job` once, in place (HOT: no index has a column that this changes). Events, counters
-- and upkeep entries are one row per call, not per job.
-- `millrace.` is replaced by the chosen schema.

CREATE SEQUENCE millrace.job_seq;
CREATE SEQUENCE millrace.event_id;
CREATE SEQUENCE millrace.event_order;

CREATE TABLE millrace.store (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    version   integer NOT NULL DEFAULT 1,
    identity  text NOT NULL DEFAULT gen_random_uuid()::text,
    numbered  bigint NOT NULL DEFAULT 0,       -- events that have their number in the feed
    trimmed   bigint NOT NULL DEFAULT 0,       -- number of the newest event that retention deleted
    trimmed_mark text NOT NULL DEFAULT '',     -- its mark, to check cursors that point right after it
    settings  bytea
);
INSERT INTO millrace.store (one) VALUES (true);

-- Settings, flags derived from them, and counters; the rows of `tally` are to be added to the counters.
CREATE TABLE millrace.queue (
    id             integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name           text NOT NULL UNIQUE,
    settings       bytea,                          -- QueueSettings; NULL: the defaults
    exact          boolean NOT NULL DEFAULT false, -- a setting depends on exact counts, so steps run one after the other
    plain_in       boolean NOT NULL DEFAULT true,  -- nothing can refuse a plain job
    plain_out      boolean NOT NULL DEFAULT true,  -- nothing bounds a claim
    plain_end      boolean NOT NULL DEFAULT true,  -- a completion enqueues no hook and deletes no record
    bounded_out    boolean NOT NULL DEFAULT false, -- only the next four columns bound a claim
    max_running    bigint,
    rate           double precision,
    capacity       double precision,               -- of the token bucket
    fair           boolean NOT NULL DEFAULT false, -- it has a fair share
    tokens         double precision,               -- in the bucket at the time `tokens_at`; NULL: no token was spent yet
    tokens_at      bigint,
    next_lane      integer NOT NULL DEFAULT 0,
    rearm          boolean NOT NULL DEFAULT false, -- auto-retry applies to jobs that died before it was switched on
    waiting        bigint NOT NULL DEFAULT 0,
    running        bigint NOT NULL DEFAULT 0,
    completed      bigint NOT NULL DEFAULT 0,
    dead           bigint NOT NULL DEFAULT 0,
    cancelled      bigint NOT NULL DEFAULT 0,
    blocked        bigint NOT NULL DEFAULT 0,
    archived       bigint NOT NULL DEFAULT 0,
    archived_dead  bigint NOT NULL DEFAULT 0,
    live           bigint NOT NULL DEFAULT 0,
    processed      bigint NOT NULL DEFAULT 0,
    died           bigint NOT NULL DEFAULT 0,
    taken          bigint NOT NULL DEFAULT 0
);

-- What a step adds to a queue's counters: inserted, so that steps of one queue do not wait for each other's commit.
CREATE TABLE millrace.tally (
    queue          integer NOT NULL,
    waiting        integer NOT NULL DEFAULT 0,
    running        integer NOT NULL DEFAULT 0,
    completed      integer NOT NULL DEFAULT 0,
    dead           integer NOT NULL DEFAULT 0,
    cancelled      integer NOT NULL DEFAULT 0,
    blocked        integer NOT NULL DEFAULT 0,
    archived       integer NOT NULL DEFAULT 0,
    archived_dead  integer NOT NULL DEFAULT 0,
    live           integer NOT NULL DEFAULT 0,
    processed      integer NOT NULL DEFAULT 0,
    died           integer NOT NULL DEFAULT 0,
    taken          bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);

CREATE TABLE millrace.task (
    name   text PRIMARY KEY,
    facts  bytea NOT NULL                          -- TaskRow: limits and running counts
);

-- One row per (queue, task, priority) ever used: a claim reads `ready` once for each.
CREATE TABLE millrace.combo (
    id        integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    queue     integer NOT NULL,
    task      text NOT NULL,
    priority  smallint NOT NULL,
    UNIQUE (queue, task, priority)
);

CREATE TABLE millrace.job (
    seq            bigint NOT NULL,
    enqueued_at    bigint NOT NULL,
    available_at   bigint NOT NULL,
    newest         bigint NOT NULL,                -- row of its newest event; each event has the row of the one before
    started_at     bigint,
    finished_at    bigint,
    expires_at     bigint,
    result_until   bigint,
    next_retry_at  bigint,
    keep_result    bigint DEFAULT 3600000,
    lease          bigint NOT NULL DEFAULT 30000,
    expiring       bigint,                         -- expires_at while it waits
    retry_at       bigint,                         -- available_at while it waits after a failure
    dead_at        bigint,
    combo          integer NOT NULL,
    queue          integer NOT NULL,
    generation     integer NOT NULL DEFAULT 1,
    events         integer NOT NULL DEFAULT 1,
    attempt        integer NOT NULL DEFAULT 0,
    failures       integer NOT NULL DEFAULT 0,
    blocked        integer NOT NULL DEFAULT 0,
    rank           smallint,                       -- of a member of a line: -priority
    state          smallint NOT NULL DEFAULT 0,    -- 0 waiting (with a lease: running), 2 completed, 3 dead, 4 cancelled
    place          smallint,                       -- while it waits: 2 it holds its line, 3 it is not in its line until due
    archived       boolean NOT NULL DEFAULT false,
    plain          boolean NOT NULL DEFAULT true,  -- no hook, and its result is kept
    id             text NOT NULL,
    line           text,
    grp            text,
    key            text,
    reply          text,                           -- the channel of the process that waits for its end
    extra          bytea,                          -- all other fields, packed; NULL while they have their defaults
    result         bytea,
    spec           bytea NOT NULL,
    CONSTRAINT job_pkey PRIMARY KEY (seq),
    CONSTRAINT job_id UNIQUE (id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE INDEX job_combo ON millrace.job (combo, seq);
-- Plain jobs are in none of the indexes below.
CREATE INDEX job_outside ON millrace.job (available_at, seq) WHERE place = 3;
CREATE INDEX job_outside_of ON millrace.job (queue, available_at) WHERE place = 3;
CREATE INDEX job_aside ON millrace.job (queue, available_at) WHERE place IS NOT NULL;
CREATE INDEX job_expiring ON millrace.job (expiring, seq) WHERE expiring IS NOT NULL;
CREATE INDEX job_retrying ON millrace.job (queue, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX job_dead ON millrace.job (queue, dead_at, seq) WHERE dead_at IS NOT NULL;
CREATE INDEX job_dead_combo ON millrace.job (combo, seq) WHERE dead_at IS NOT NULL;
CREATE INDEX job_next_retry ON millrace.job (next_retry_at, seq) WHERE next_retry_at IS NOT NULL;
CREATE INDEX job_group ON millrace.job (grp, seq) WHERE grp IS NOT NULL;
CREATE INDEX job_key ON millrace.job (key, seq) WHERE key IS NOT NULL;

-- The jobs that wait in a line, in the order of the line. A separate table, because a claim removes its jobs from their
-- lines: a column of `job` with an index would make each claim write a new version of the job, and all its index entries.
CREATE TABLE millrace.member (
    seq    bigint NOT NULL,
    due    bigint NOT NULL,                        -- available_at of the job
    queue  integer NOT NULL,
    rank   smallint NOT NULL,
    line   text NOT NULL,
    CONSTRAINT member_pkey PRIMARY KEY (queue, line, rank, seq)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- By an expression, so that the planner cannot use it to look up one member: it would read all members of the queue.
CREATE INDEX member_due ON millrace.member ((queue + 0), due);

-- The open jobs, due or not: a claim reads and deletes them.
CREATE TABLE millrace.ready (
    available_at  bigint NOT NULL,
    seq           bigint NOT NULL,
    combo         integer NOT NULL,
    special       boolean NOT NULL DEFAULT false,  -- a member of a line, or it expires: its claim changes more rows
    CONSTRAINT ready_pkey PRIMARY KEY (combo, available_at, seq)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The running jobs. `until` has no index, so that an extension is done in place; the table has one row per running job.
CREATE TABLE millrace.lease (
    seq         bigint NOT NULL,
    until       bigint NOT NULL,
    started_at  bigint NOT NULL,
    newest      bigint NOT NULL,
    span        bigint NOT NULL,
    combo       integer NOT NULL,
    attempt     integer NOT NULL,
    events      integer NOT NULL,
    cancelling  boolean NOT NULL DEFAULT false,
    id          text NOT NULL,
    worker      text NOT NULL,
    progress    bytea,
    CONSTRAINT lease_pkey PRIMARY KEY (seq)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- The events of one call. An array with one element holds the value of all events.
CREATE TABLE millrace.event (
    id           bigint PRIMARY KEY,
    at           bigint NOT NULL,
    seqs         bigint[] NOT NULL,
    before       bigint[] NOT NULL,                -- for each event: the row with the same job's previous event, or 0
    combos       integer[] NOT NULL,
    generations  integer[] NOT NULL,
    ns           integer[] NOT NULL,
    attempts     integer[] NOT NULL,
    failures     integer[] NOT NULL,
    kinds        smallint[] NOT NULL,
    states       smallint[] NOT NULL,
    ids          text[] NOT NULL,
    workers      text[],
    leases       text[],
    delays       bigint[],
    durations    bigint[],
    reasons      text[],
    errors       bytea                             -- list of (index, Failure)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.2);
-- The long arrays are not compressed: compression took a tenth of the time of a large enqueue and saved 44 bytes per job.
ALTER TABLE millrace.event ALTER seqs SET STORAGE EXTERNAL, ALTER before SET STORAGE EXTERNAL,
    ALTER ids SET STORAGE EXTERNAL, ALTER leases SET STORAGE EXTERNAL;

-- Events are numbered after their commit, by the next reader: numbers drawn by writers would become visible out of order.
-- This table has the events without a number.
CREATE TABLE millrace.outbox (
    place  bigint PRIMARY KEY DEFAULT nextval('millrace.event_order'),
    event  bigint NOT NULL,
    size   integer NOT NULL,
    at     bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);

CREATE TABLE millrace.feed (
    last   bigint PRIMARY KEY,                     -- number of the last event of the row
    event  bigint NOT NULL,
    size   integer NOT NULL,
    at     bigint NOT NULL
);

-- When jobs are due for upkeep: 1 ended jobs of a queue by the time they ended, 2 results by the time they expire.
CREATE TABLE millrace.agenda (
    id     bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at     bigint NOT NULL,
    queue  integer NOT NULL,
    kind   smallint NOT NULL,
    seqs   bigint[] NOT NULL
);
CREATE INDEX agenda_due ON millrace.agenda (kind, queue, at, id);

-- Generations whose record is deleted.
CREATE TABLE millrace.past (
    seq         bigint PRIMARY KEY,
    gone_at     bigint NOT NULL,
    newest      bigint NOT NULL,
    generation  integer NOT NULL,
    state       smallint NOT NULL,
    id          text NOT NULL,
    token       text NOT NULL
);
CREATE INDEX past_id ON millrace.past (id);
CREATE INDEX past_gone ON millrace.past (gone_at);

CREATE TABLE millrace.line (
    queue      integer NOT NULL,
    name       text NOT NULL,
    holder     bigint,
    open       bigint,
    waiting    bigint NOT NULL,
    live       bigint NOT NULL,
    processed  bigint NOT NULL,
    died       bigint NOT NULL,
    PRIMARY KEY (queue, name)
) WITH (fillfactor = 50);

CREATE TABLE millrace.hold (
    queue  text NOT NULL,
    key    text NOT NULL,
    owner  text NOT NULL,
    seq    bigint NOT NULL,
    scope  text NOT NULL,
    until  bigint,
    PRIMARY KEY (queue, key)
);
CREATE INDEX hold_until ON millrace.hold (until) WHERE until IS NOT NULL;

CREATE TABLE millrace.dependency (
    n       bigint GENERATED ALWAYS AS IDENTITY,
    parent  text NOT NULL,
    child   bigint NOT NULL,
    PRIMARY KEY (parent, child)
);
CREATE INDEX dependency_child ON millrace.dependency (child, n);

-- Every job with dependencies, by the ids it depends on, for as long as its record exists.
CREATE TABLE millrace.dependent (
    parent  text NOT NULL,
    child   bigint NOT NULL,
    PRIMARY KEY (parent, child)
);
CREATE INDEX dependent_child ON millrace.dependent (child);

CREATE TABLE millrace.worker (
    id      text PRIMARY KEY,
    record  bytea NOT NULL,
    queues  text[] NOT NULL,
    until   bigint NOT NULL  -- considered alive until then, or until a later heartbeat
) WITH (fillfactor = 50);

CREATE TABLE millrace.schedule (
    name    text PRIMARY KEY,
    record  bytea NOT NULL
);
