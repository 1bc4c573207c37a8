-- Version 1 of the PostgreSQL store: tables.
-- A plain job costs a row in `job` and one in `ready`; a claim moves `ready` to `lease`; an end updates `job` once, in
-- place (HOT: no index names a column that a plain end changes). What is told of a call (events, counters, what is due
-- for upkeep) is one row per call, not per job.
-- `millrace.` stands for the chosen schema.

CREATE SEQUENCE millrace.job_seq;
CREATE SEQUENCE millrace.event_id;
CREATE SEQUENCE millrace.event_order;

CREATE TABLE millrace.store (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    version   integer NOT NULL DEFAULT 1,
    identity  text NOT NULL DEFAULT gen_random_uuid()::text,
    numbered  bigint NOT NULL DEFAULT 0,       -- events that have their number in the feed
    trimmed   bigint NOT NULL DEFAULT 0,       -- number of the newest event that retention took away
    settings  bytea
);
INSERT INTO millrace.store (one) VALUES (true);

-- Settings, what is decided by them, and counters; to the counters belong the rows of `tally`.
CREATE TABLE millrace.queue (
    id             integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name           text NOT NULL UNIQUE,
    settings       bytea,                          -- QueueSettings; NULL: as they are by default
    exact          boolean NOT NULL DEFAULT false, -- a setting decides by numbers, so steps take turns
    plain_in       boolean NOT NULL DEFAULT true,  -- nothing can refuse a plain job
    plain_out      boolean NOT NULL DEFAULT true,  -- nothing bounds a claim
    plain_end      boolean NOT NULL DEFAULT true,  -- nothing follows from the end of a plain job
    bucket         bytea,
    next_lane      integer NOT NULL DEFAULT 0,
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

-- What a step added to a queue's counters: inserted, so that steps of one queue need not wait for each other's commit.
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
    facts  bytea NOT NULL                          -- TaskRow: limits and what runs
);

-- One row per (queue, task, priority) ever used: a claim looks into `ready` once for each.
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
    newest         bigint NOT NULL,                -- its newest event; each event names the one before
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
    rank           smallint,                       -- of a line's member: -priority
    state          smallint NOT NULL DEFAULT 0,    -- 0 waiting (with a lease: running), 2 completed, 3 dead, 4 cancelled
    place          smallint,                       -- in its line: 1 waits there, 2 holds it closed, 3 outside until due
    archived       boolean NOT NULL DEFAULT false,
    plain          boolean NOT NULL DEFAULT true,  -- no line, no key, no hook, and its result is kept
    id             text NOT NULL,
    line           text,
    grp            text,
    key            text,
    reply          text,                           -- the channel of the process that waits for its end
    extra          bytea,                          -- facts that a plain job never has
    result         bytea,
    spec           bytea NOT NULL,
    CONSTRAINT job_pkey PRIMARY KEY (seq),
    CONSTRAINT job_id UNIQUE (id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE INDEX job_combo ON millrace.job (combo, seq);
-- Below: nothing of a plain job.
CREATE INDEX job_outside ON millrace.job (available_at, seq) WHERE place = 3;
CREATE INDEX job_outside_of ON millrace.job (queue, available_at) WHERE place = 3;
CREATE INDEX job_member ON millrace.job (queue, line, rank, seq) WHERE place = 1;
CREATE INDEX job_aside ON millrace.job (queue, available_at) WHERE place IS NOT NULL;
CREATE INDEX job_expiring ON millrace.job (expiring, seq) WHERE expiring IS NOT NULL;
CREATE INDEX job_retrying ON millrace.job (queue, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX job_dead ON millrace.job (queue, dead_at, seq) WHERE dead_at IS NOT NULL;
CREATE INDEX job_dead_combo ON millrace.job (combo, seq) WHERE dead_at IS NOT NULL;
CREATE INDEX job_next_retry ON millrace.job (next_retry_at, seq) WHERE next_retry_at IS NOT NULL;
CREATE INDEX job_group ON millrace.job (grp, seq) WHERE grp IS NOT NULL;
CREATE INDEX job_key ON millrace.job (key, seq) WHERE key IS NOT NULL;

-- The open jobs, due or not: what a claim looks at, and deletes.
CREATE TABLE millrace.ready (
    available_at  bigint NOT NULL,
    seq           bigint NOT NULL,
    combo         integer NOT NULL,
    special       boolean NOT NULL DEFAULT false,  -- a line's member, or it expires: its claim takes more than a lease
    CONSTRAINT ready_pkey PRIMARY KEY (combo, available_at, seq)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What runs. `until` has no index, so that an extension is done in place; the table is as long as what runs.
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

-- The events of one call. An array with one element stands for as many equal ones as there are events.
CREATE TABLE millrace.event (
    id           bigint PRIMARY KEY,
    at           bigint NOT NULL,
    seqs         bigint[] NOT NULL,
    before       bigint[] NOT NULL,                -- of each event: the row with the same job's event before it, or 0
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
-- The long ones are not compressed: that took a tenth of the time of a large enqueue, to save 44 bytes per job.
ALTER TABLE millrace.event ALTER seqs SET STORAGE EXTERNAL, ALTER before SET STORAGE EXTERNAL,
    ALTER ids SET STORAGE EXTERNAL, ALTER leases SET STORAGE EXTERNAL;

-- Events get their numbers in the feed after their commit, from whoever looks: serial numbers drawn by writers become
-- visible out of order. Here are those without one.
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

-- What upkeep has to look at when: 1 ended jobs of a queue by the time they ended, 2 results by the time they expire.
CREATE TABLE millrace.agenda (
    id     bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at     bigint NOT NULL,
    queue  integer NOT NULL,
    kind   smallint NOT NULL,
    seqs   bigint[] NOT NULL
);
CREATE INDEX agenda_due ON millrace.agenda (kind, queue, at, id);

-- Generations whose record is gone.
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

CREATE TABLE millrace.worker (
    id      text PRIMARY KEY,
    record  bytea NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE millrace.schedule (
    name    text PRIMARY KEY,
    record  bytea NOT NULL
);
