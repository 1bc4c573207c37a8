// A job as each version of its object had it, on a bucket that keeps them; any two can be compared.
//
// A pending version is shown with its outcome, which follows from the version above it. A version that repeats the one
// below it (after a commit or an abort) is shown as a repeat.

import { opened } from "./objects.js";
import { facts, whole } from "./record.js";
import { refused } from "./problems.js";
import { shown, when } from "./views.js";

const PAGE = 50;
const MOST = 300; // versions that are read to find the job's state after an event
const NOT_COMPARED = new Set(["seq", "attempts", "missing", "rev"]);
const SHOWN_BY_EVENTS = new Set([
  ...["state", "attempt", "failures", "worker", "reason", "error", "archived", "queue", "task", "generation"],
  ...["available_at", "started_at", "finished_at", "enqueued_at", "id"],
]);

/** {id, kept, versions: [{version, at, rev, events, state, job, deleted, undecided, repeats}], cursor}, newest first. */
export async function versions(store, id, query) {
  const key = await store.layout.job(id);
  const limit = Math.min(200, Math.max(1, Number(query.limit ?? PAGE) || PAGE));
  const cursor = query.cursor || null;
  const listed = await store.bucket.versions(key, cursor, limit);
  if (listed.versions.length === 0 && cursor === null) throw refused(404, "not_found", `There is no job ${id}.`);
  const found = await Promise.all(listed.versions.map((version) => readOne(store, key, version)));
  const here = found.filter((one) => one !== null);
  let above = cursor === null ? null : await envelopeOf(store, key, cursor);
  for (const [place, one] of here.entries()) {
    if (one.envelope) Object.assign(one, await store.objects.settled(one.envelope, above, cursor === null && place === 0, key));
    above = one.envelope;
  }
  const below = listed.next && (await valueBelow(store, key, here.at(-1), listed.next));
  const described = await Promise.all(
    here.map((one, place) => describe(store, one, place + 1 < here.length ? here[place + 1].value : below)),
  );
  return { id, kept: described.length > 1 || described[0]?.version !== "null", versions: described, cursor: listed.next };
}

/** What differs between two versions, field by field: {from, to, changes}. */
export async function versionsDiff(store, id, query) {
  const key = await store.layout.job(id);
  const [from, to] = await Promise.all([query.from, query.to].map((version) => versionOf(store, id, key, version)));
  return { from, to, changes: compared(from.job, to.job) };
}

/** Changes between two events ("generation:n") that only the versions show, and not the events. */
export async function changedBetween(store, id, from, to) {
  const found = new Map();
  let cursor = null;
  for (let seen = 0; seen < MOST && !(found.has(from) && found.has(to)); ) {
    const page = await versions(store, id, { cursor, limit: 25 });
    for (const { job, events } of page.versions) {
      const place = job && `${job.generation}:${events}`;
      if ((place === from || place === to) && !found.has(place)) found.set(place, job);
    }
    seen += page.versions.length;
    cursor = page.cursor;
    if (cursor === null) break;
  }
  if (!found.has(from) || !found.has(to)) return [];
  return compared(found.get(from), found.get(to)).filter(({ fact }) => !SHOWN_BY_EVENTS.has(fact));
}

async function versionOf(store, id, key, version) {
  if (!version) throw refused(400, "invalid", "Two versions are compared: name them as `from` and `to`.");
  const envelope = await envelopeOf(store, key, version);
  if (envelope === null) throw refused(404, "not_found", `Job ${id} has no version ${version} (any more).`);
  const above = await envelopeAbove(store, key, version);
  const settled = await store.objects.settled(envelope, above.envelope, above.isNewest, key);
  return describe(store, { version: { id: version, at: null, deleted: false }, envelope, ...settled }, null);
}

/** The version written after this one: only a pending write needs it to be understood. */
async function envelopeAbove(store, key, version) {
  let last = null;
  for (let cursor = null; ; ) {
    const page = await store.bucket.versions(key, cursor, 200);
    for (const one of page.versions) {
      if (one.id === version) {
        return { isNewest: last === null, envelope: last && !last.deleted ? await envelopeOf(store, key, last.id) : null };
      }
      last = one;
    }
    cursor = page.next;
    if (cursor === null) return { isNewest: false, envelope: null };
  }
}

async function readOne(store, key, version) {
  if (version.deleted) return { version, envelope: null, value: null };
  const envelope = await envelopeOf(store, key, version.id);
  return envelope && { version, envelope, value: envelope.value }; // null: removed since it was listed
}

async function envelopeOf(store, key, version) {
  const blob = await store.version(key, version);
  return blob && opened(blob.text);
}

async function valueBelow(store, key, last, cursor) {
  const { versions: [next] } = await store.bucket.versions(key, cursor, 1);
  const one = next && (await readOne(store, key, next));
  if (!one?.envelope) return null;
  return (await store.objects.settled(one.envelope, last.envelope, false, key)).value;
}

async function describe(store, { version, envelope, value, undecided = false }, below) {
  const found = value === null ? null : facts(value);
  const job = found && shown(await whole(store.bucket, found), version.at ?? store.now, store.redaction);
  return {
    version: version.id,
    at: when(version.at),
    rev: found?.rev ?? 0,
    events: found?.events ?? 0,
    state: job?.state ?? null,
    job,
    deleted: envelope === null,
    undecided,
    repeats: value !== null && value === below,
  };
}

function compared(before, after) {
  const names = [...new Set([...Object.keys(after ?? {}), ...Object.keys(before ?? {})])];
  return names
    .filter((name) => !NOT_COMPARED.has(name))
    .map((fact) => ({ fact, before: before?.[fact] ?? null, after: after?.[fact] ?? null }))
    .filter((one) => JSON.stringify(one.before) !== JSON.stringify(one.after));
}
