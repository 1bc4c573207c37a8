// The history of a job: the events in its record, and what each of them changed. Between any two of them, versions of
// the record (where the bucket keeps them) tell also what no event does: payload, result, progress.

import { STORE } from "./layout.js";
import * as raw from "./raw_json.js";
import { facts, whole } from "./record.js";
import { refused } from "./problems.js";
import { Secrets } from "./secrets.js";
import { eventShown, secretsOf } from "./views.js";
import { changes, factsAfter } from "./timeline.js";
import { changedBetween } from "./versions.js";

export async function history(store, id) {
  const { events, shown } = await eventsOf(store, id);
  const known = factsAfter(events);
  const steps = shown.map((event, place) => ({ event, changes: changes(known[place - 1] ?? null, known[place]) }));
  return { id, steps };
}

export async function diff(store, id, query) {
  const { events, shown } = await eventsOf(store, id);
  const numbers = events.map((event) => `${event.generation}:${event.n}`);
  const place = (text, otherwise) => {
    if (!text) return otherwise;
    const wanted = String(text).includes(":") ? text : `${events.at(-1).generation}:${text}`;
    if (!numbers.includes(wanted)) {
      throw refused(400, "invalid", `There is no event ${text}; this job has ${numbers[0]} to ${numbers.at(-1)}.`);
    }
    return numbers.indexOf(wanted);
  };
  const [from, to] = [place(query.from, 0), place(query.to, events.length - 1)];
  const known = factsAfter(events);
  const more = await changedBetween(store, id, numbers[from], numbers[to]).catch(withoutVersions);
  return { from: shown[from], to: shown[to], changes: [...changes(known[from], known[to]), ...more] };
}

/** Credentials may allow reading objects but not their versions: then only the events are shown. */
function withoutVersions(error) {
  if (!error.detail) throw error;
  return [];
}

/** The events, oldest first, and the same as they are shown. */
async function eventsOf(store, id) {
  const [seen, cut] = await Promise.all([store.objects.one(await store.layout.job(id)), trimmed(store)]);
  const record = seen.value === null ? new Map() : raw.fields(seen.value);
  const spilled = await store.bucket.getMany(raw.read(record, "spilled", []));
  const parts = [...spilled.filter((blob) => blob !== null).map((blob) => raw.fields(blob.text).get("events")), record.get("events")];
  const kept = parts.flatMap((part) => (part ? raw.items(part).map(filed) : [])).filter((one) => isKept(one, cut));
  const job = facts(seen.value);
  const past = record.has("past") ? raw.items(record.get("past")).map((one) => raw.digits(raw.fields(one), "seq")) : [];
  const lives = new Set([...past, job?.seq]);
  const found = kept.map((one) => one.event).filter((event) => lives.has(event.seq));
  found.sort((a, b) => (BigInt(a.seq) < BigInt(b.seq) ? -1 : a.seq === b.seq ? a.n - b.n : 1));
  if (found.length === 0) throw refused(404, "not_found", `There is no job ${id}.`);
  const now = job && (await whole(store.bucket, job));
  const rule = store.redaction;
  const known = now && secretsOf(now, rule);
  const gone = new Secrets(rule.phrases.length ? null : []);
  const shown = found.map((event) => {
    // The payload of a job that was deleted, or enqueued again, is not known, and neither is what its error may quote.
    return eventShown(event, now?.generation === event.generation ? known : gone);
  });
  const events = found.map((event, place) => ({ ...event, error: shown[place].error }));
  return { events, shown };
}

export function filed(text) {
  const one = raw.fields(text);
  const event = one.get("event");
  return {
    stamp: BigInt(raw.digits(one, "stamp")),
    place: raw.read(one, "place", 0),
    event: { ...JSON.parse(event), seq: raw.digits(raw.fields(event), "seq") },
  };
}

/** How far the feed has been cut: what is before that is past its retention. */
async function trimmed(store) {
  const value = await store.setting(STORE);
  const cut = value === null ? undefined : raw.fields(value).get("trimmed");
  const fields = cut ? raw.fields(cut) : new Map();
  return { stamp: BigInt(raw.digits(fields, "stamp")), place: raw.read(fields, "place", -1) };
}

const isKept = ({ stamp, place }, cut) => stamp > cut.stamp || (stamp === cut.stamp && place > cut.place);
