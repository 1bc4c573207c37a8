-- Version 2 of the SQLite store: schedules.

CREATE TABLE millrace_schedule (
    name    TEXT PRIMARY KEY,
    record  BLOB NOT NULL                    -- Schedule: definition, mark, revision
) WITHOUT ROWID;
