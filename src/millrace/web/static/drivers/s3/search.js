// Finding jobs: the index shows which jobs may match, and their records which do.

import { fingerprint } from "./fingerprint.js";
import { newest } from "./index_keys.js";
import { nameOf, word } from "./layout.js";
import { refused } from "./problems.js";
import { wordOf } from "./record.js";
import { ALIASES } from "./tables.js";
import { listed } from "./views.js";

const FINISHED = new Set(["completed", "dead", "cancelled"]);
const WORDS = new Set(["waiting", "ready", "scheduled", "retrying", "blocked", "running", ...FINISHED]);
const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const PATIENCE = 1_500; // milliseconds after which a search answers with what it has, and a cursor
const TOGETHER = 48;

/** What a query asks for, checked. */
export function readQuery(query, store, signal = null) {
  const now = store.now;
  let state = query.status ? String(query.status).trim().toLowerCase() : query.error ? "dead" : null;
  let archived = isOn(query.all) ? null : false;
  if (state === "archived") [state, archived] = [null, true];
  state = ALIASES[state] ?? state;
  if (state !== null && !WORDS.has(state)) throw refused(400, "invalid", `There is no state ${query.status}.`);
  const shard = query.shard || null;
  if (shard !== null && !store.layout.shards.includes(shard)) {
    const known = store.layout.shards;
    throw refused(400, "invalid", `There is no shard ${shard}; this store has ${known[0]} to ${known.at(-1)}.`);
  }
  const cursor = query.cursor || null;
  const byChange = query.sort === "changed";
  if (query.sort && !["enqueued", "changed"].includes(query.sort)) {
    throw refused(400, "invalid", `sort is enqueued or changed, not ${query.sort}.`);
  }
  if (byChange && isOn(query.oldest)) throw refused(400, "invalid", "sort=changed lists the latest changes first; remove oldest.");
  if (cursor !== null && !(byChange ? /^\d{1,15}-\d{1,19}$/ : /^\d{1,19}$/).test(cursor)) throw refused(400, "invalid", "This is not a cursor of this store.");
  return {
    signal,
    state,
    archived,
    shard,
    cursor,
    queue: query.queue || null,
    task: query.task || null,
    group: query.group || null,
    key: query.key || null,
    tag: query.tag || null,
    error: query.error || null,
    after: query.after || null,
    from: moment(query.since, now),
    to: moment(query.until, now),
    endedFrom: moment(query.finished_from, now),
    endedTo: moment(query.finished_to, now),
    oldest: isOn(query.oldest),
    byChange,
    limit: Math.min(500, Math.max(1, Number(query.limit ?? 50) || 50)),
  };
}

const isOn = (value) => value === true || ["true", "1", ""].includes(value);

function moment(text, now) {
  if (!text) return null;
  if (/^\d{4}-/.test(text)) {
    const at = Date.parse(text);
    if (!Number.isNaN(at)) return at;
  } else if (/^(\d{1,6}(ms|s|m|h|d|w))+$/.test(text)) {
    const parts = [...text.matchAll(/(\d+)(ms|s|m|h|d|w)/g)];
    return now - parts.reduce((sum, [, count, unit]) => sum + Number(count) * UNITS[unit], 0);
  }
  throw refused(400, "invalid", `${text} is not a time. Use a duration before now (90s, 15m, 2d) or a date (2026-01-31T14:30Z).`);
}

/** A page: {jobs: facts, cursor, scanned, complete}. */
export async function find(store, query) {
  const { entries: all, complete } = await mayFit(store, query);
  const task = query.task === null ? null : await word(query.task);
  const number = (seq) => seq.padStart(19, "0");
  const place = ({ written, seq }) => (query.byChange ? `${String(written ?? 0).padStart(15, "0")}-${number(seq)}` : number(seq));
  const start = query.cursor === null ? null : query.byChange ? query.cursor : number(query.cursor);
  const fits = (entry) =>
    (task === null || entry.task === task) &&
    (!FINISHED.has(query.state) || entry.state === query.state) &&
    endedThen(entry, query) &&
    (query.archived === null || !FINISHED.has(entry.state) || entry.flags.includes("a") === query.archived) &&
    (start === null || (query.oldest ? place(entry) > start : place(entry) < start));
  const order = query.oldest ? 1 : -1;
  const entries = newest(all).filter(fits);
  entries.sort((a, b) => (place(a) < place(b) ? -order : order));
  const jobs = [];
  const until = performance.now() + PATIENCE;
  let scanned = 0;
  while (scanned < entries.length) {
    query.signal?.throwIfAborted(); // the answer is no longer needed
    if (jobs.length >= query.limit || performance.now() > until) {
      const last = entries[scanned - 1];
      return { jobs, cursor: query.byChange ? place(last) : last.seq, scanned, complete };
    }
    const some = entries.slice(scanned, scanned + Math.min(TOGETHER, query.limit));
    const read = await store.jobs(some);
    for (const [place, job] of read.entries()) {
      if (jobs.length >= query.limit) break;
      scanned += 1;
      if (job !== null && job.seq === some[place].seq && (await matches(job, query, store.now))) jobs.push(job);
    }
  }
  return { jobs, cursor: null, scanned, complete };
}

/** The key of an ended job contains the time of its end: jobs that ended at another time are not read. */
function endedThen(entry, { endedFrom, endedTo }) {
  if (endedFrom === null && endedTo === null) return true;
  if (!FINISHED.has(entry.state)) return false;
  return (endedFrom === null || entry.at >= endedFrom) && (endedTo === null || entry.at < endedTo);
}

/** The jobs that wait for a job have a separate index. */
async function mayFit(store, query) {
  if (query.after === null || query.state !== "blocked") return store.index.entries(query);
  const { keys, more } = await store.bucket.listAll(`deps/${await nameOf(query.after)}/`, { pages: 5 });
  const entries = keys.map((key) => {
    const [seq, name] = key.split("/")[2].split(/\.(.*)/s);
    return { key, seq: seq.replace(/^0+(?=.)/, ""), name, state: "waiting", queue: "", task: "", rev: 0, at: 0, flags: "b" };
  });
  return { entries: query.task === null ? entries : (await store.index.entries(query)).entries, complete: !more };
}

async function matches(job, query, now) {
  const { spec } = job;
  return (
    (query.queue === null || job.queue === query.queue) &&
    (query.task === null || job.task === query.task) &&
    (query.state === null || job.state === query.state || wordOf(job, now) === query.state) &&
    (query.group === null || spec.group === query.group) &&
    (query.key === null || spec.key === query.key) &&
    (query.tag === null || spec.tags.includes(query.tag)) &&
    (query.from === null || job.enqueued_at >= query.from) &&
    (query.to === null || job.enqueued_at < query.to) &&
    (query.endedFrom === null || (job.finished_at !== null && job.finished_at >= query.endedFrom)) &&
    (query.endedTo === null || (job.finished_at !== null && job.finished_at < query.endedTo)) &&
    (query.archived === null || job.archived === query.archived) &&
    (query.after === null || spec.after.includes(query.after)) &&
    (query.error === null || (await fingerprint(job)) === query.error)
  );
}

export async function listJobs(store, query, signal) {
  const ids = [query.id ?? []].flat();
  if (ids.length) {
    const found = (await Promise.all(ids.map((id) => store.job(id)))).filter((job) => job !== null);
    const jobs = found.map((job) => listed(job, store.now, store.redaction));
    return { jobs, cursor: null, scanned: jobs.length, complete: true };
  }
  const page = await find(store, readQuery(query, store, signal));
  return { ...page, jobs: page.jobs.map((job) => listed(job, store.now, store.redaction)) };
}
