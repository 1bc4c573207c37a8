-- history.sql: the feed of events in pages, and past generations of deleted jobs.

-- name: insert_page
INSERT INTO millrace_event (last, first, last_seq, last_due, counters, page)
VALUES (:last, :first, :last_seq, :last_due, :counters, :page);

-- name: put_page_counters
UPDATE millrace_event SET counters = :counters WHERE last = :last;

-- name: pages_after
-- Pages of the feed after a cursor.
SELECT first, page FROM millrace_event WHERE last > :after ORDER BY last LIMIT :limit;

-- name: page_of
-- The page that holds one event.
SELECT first, page FROM millrace_event WHERE last >= :cursor ORDER BY last LIMIT 1;

-- name: drop_pages
DELETE FROM millrace_event WHERE last <= :trimmed;

-- name: trimmed_mark
SELECT trimmed_mark FROM millrace_store;

-- name: put_trimmed_mark
UPDATE millrace_store SET trimmed_mark = :mark;

-- name: drop_spans
-- Blocks whose jobs are all deleted.
DELETE FROM millrace_span WHERE block < (SELECT min(seq) FROM millrace_job) / 1024;

-- name: any_past
SELECT EXISTS (SELECT 1 FROM millrace_past);

-- name: past
-- Past generations for a JSON list of ids.
SELECT past.id, seq, generation, state, token, gone_at, last_event
FROM json_each(:ids) AS wanted
CROSS JOIN millrace_past AS past ON past.id = wanted.value;

-- name: stale_past
SELECT id, seq, generation, state, token, gone_at FROM millrace_past
WHERE gone_at <= :before ORDER BY gone_at, seq LIMIT :limit;

-- name: past_after
SELECT id, seq, generation, state, token, gone_at, last_event FROM millrace_past
WHERE (gone_at, seq) > (:gone_at, :seq) ORDER BY gone_at, seq LIMIT :limit;

-- name: put_past
INSERT INTO millrace_past (seq, id, generation, state, token, gone_at, last_event) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_past
DELETE FROM millrace_past WHERE seq IN (SELECT value FROM json_each(:seqs));
