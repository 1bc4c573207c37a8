// Replay, archive and unarchive, written as the store itself would write them, in its order:
//
//   the key by which the job is found → the swap of queue and job, together → the event in the feed → the old keys go
//
// A change that depends on more than the job and its queue (a line, a unique key, parents) is refused: the command line
// has all rules of the store. Every swap names the tag of what was read, so a concurrent change is never overwritten.

import { pause } from "./bucket.js";
import { STORE, dueKey, feedKey, queueKey } from "./layout.js";
import { asWriter } from "./writer_numbers.js";
import { nonce } from "./objects.js";
import * as raw from "./raw_json.js";
import { facts } from "./record.js";
import { refused } from "./problems.js";
import { settingsOf } from "./views.js";

const TRIES = 12;
const LOCK_PATIENCE = 3_000; // milliseconds to wait for another client's unfinished write
const LATE = 2_000; // between deciding and writing: then it is decided again, with a new date
const YOUNG = 5_000; // after that, a sweep may take the new index key for a leftover
const PUBLISHED_LATE = 30_000; // readers of the feed may be past it by then
const OPEN_STAGES = new Set(["draining", "aborting", "opened"]); // Closing.refuses of domain/settings.py
const FINISHED = new Set(["completed", "dead", "cancelled"]);

/** {id, answer, done} for each id, in the shapes of the API; one after the other. With `tolerant`, one that is refused
 * does not stop the others. `rev`: only if the record is still that one. */
export async function actOn(store, verb, ids, { rev = null, tolerant = false } = {}) {
  if (!store.bucket.clock.known) {
    throw refused(502, "clock", "This page cannot read the Date header of the bucket (CORS), so it does not know the time. Run: millrace init --origin " + location.origin);
  }
  store.index.forget();
  try {
    return await asWriter(store.objects, async (draw) => {
      const answers = [];
      for (const id of ids) {
        const answer = actOnOne(store, verb, id, rev, draw);
        answers.push(await (tolerant ? answer.catch((error) => refusedAs(id, error)) : answer));
      }
      return answers;
    });
  } finally {
    store.index.forget();
  }
}

function refusedAs(id, error) {
  if (!["not_here", "not_found", "locked", "crowded"].includes(error.code)) throw error;
  return { id, answer: error.code, done: false };
}

async function actOnOne(store, verb, id, rev, draw) {
  const key = await store.layout.job(id);
  const begun = performance.now();
  for (let attempt = 0; attempt < TRIES; ) {
    const job = await store.objects.one(key);
    const known = facts(job.value);
    if (known === null) throw refused(404, "not_found", `There is no job ${id}.`);
    if (rev !== null && known.rev !== rev) throw changedMeanwhile(id);
    const answer = verb === "replay" ? replayAnswer(known) : archiveAnswer(known, verb === "archive");
    if (answer !== null) return { id, ...answer };
    const queue = await store.objects.one(await queueKey(known.queue));
    await refuseIfClosed(store, queue);
    refuseUnsound(known, queue, verb, raw.fields(job.value).get("awaited") === "true");
    if (job.lock || queue.lock) {
      if (performance.now() - begun > LOCK_PATIENCE) throw inTheWay(id, verb);
      await pause(100 + 200 * Math.random());
      continue;
    }
    const done = await written(store, await planned(store, verb, known, job, queue, draw), id);
    if (done) return { id, answer: verb === "replay" ? "replayed" : "done", done: true };
    attempt += 1;
    await pause(Math.min(1_000, 20 * 2 ** attempt) * Math.random());
  }
  throw refused(503, "crowded", `Other clients keep changing ${id} or its queue. Nothing was changed; try again.`);
}

// what may be done

function replayAnswer({ state }) {
  return FINISHED.has(state) ? null : { answer: state, done: false };
}

function archiveAnswer({ state, archived }, wanted) {
  if (!FINISHED.has(state)) return { answer: "not_finished", done: false };
  return archived === wanted ? { answer: "unchanged", done: true } : null;
}

/** As `refuse_if_closed` of store/object/engine/closing.py: a store that `millrace move` has closed refuses changes. */
async function refuseIfClosed(store, queue) {
  const { value } = queue.value === null ? await store.objects.one(STORE) : queue;
  const { closed, settings } = value === null ? {} : JSON.parse(value);
  const why = closed ?? settings?.closed;
  if (!why || OPEN_STAGES.has(why.stage)) return;
  throw refused(409, "closed", `The jobs of this store are being moved, or were moved, to or from ${why.peer} (millrace move). Nothing was changed.`);
}

function refuseUnsound(job, queue, verb, awaited) {
  if (verb !== "replay") return;
  const { spec } = job;
  const lanes = queue.value === null ? null : settingsOf(JSON.parse(queue.value)).lanes;
  const why =
    spec.group !== null && !spec.hook
      ? `it belongs to the ordered group ${spec.group}`
      : (lanes !== null || job.lane !== null) && !spec.hook
        ? `queue ${job.queue} is a pool, whose lanes are ordered`
        : spec.key !== null
          ? `it has the unique key ${spec.key}, which another job may have taken`
          : spec.after.length
            ? "it depends on other jobs, which it may have to wait for again"
            : awaited
              ? "other jobs depend on it, and those that died because it failed are replayed with it"
              : null;
  if (why) throw refused(409, "not_here", `This cannot be replayed from a page without a server: ${why}. On the command line: millrace replay ${job.id}`);
}

const changedMeanwhile = (id) =>
  refused(409, "changed", `Job ${id} has changed since it was shown. Nothing was changed; refresh and try again.`);

const inTheWay = (id, verb) =>
  refused(
    409,
    "locked",
    `Another client's unfinished write blocks ${id}. A worker will complete or undo it soon; or, on the command line: millrace ${verb} ${id}`,
  );

// what is written

/** Everything that one attempt writes; nothing is written yet. */
async function planned(store, verb, known, job, queue, draw) {
  const now = store.now;
  const record = raw.fields(job.value);
  const fields = raw.fields(record.get("job"));
  const events = record.has("events") ? raw.items(record.get("events")) : [];
  const row = raw.fields(queue.value ?? raw.object(new Map([["name", JSON.stringify(known.queue)]])));
  const stamp = await draw(now, lastStamp(events), raw.digits(row, "stamp"));
  const before = [];
  if (verb === "replay") bringBack(fields, known, now);
  else raw.set(fields, "archived", verb === "archive" || null);
  raw.set(fields, "events", (known.events ?? 0) + 1);
  const rev = known.rev + 1;
  const filedUnder = await filedAs(store, fields, known, `${rev}-${nonce(6)}`);
  const event = eventOf(verb, fields, known, now, stamp);
  const leftover = verb === "replay" && known.data.output;
  if (verb === "replay") {
    record.delete("output");
    setData(record, known.data);
    const expires = raw.read(fields, "expires_at");
    if (expires !== null) before.push([dueKey(expires, stamp), `{"jobs":[[${expires},${JSON.stringify(job.key)}]]}`]);
  }
  raw.set(record, "rev", rev);
  raw.set(record, "filed", filedUnder);
  record.set("job", raw.object(fields));
  record.set("events", raw.array([...events, event]));
  count(row, verb, known, stamp);
  return {
    now,
    stamp,
    event,
    before: [[filedUnder, ""], ...before],
    filedUnder,
    old: [known.filed, leftover].filter(Boolean),
    changes: [
      { seen: queue, value: raw.object(row) },
      { seen: job, value: raw.object(record) },
    ],
    draw,
  };
}

/** As transition.replay: a fresh budget, the same history. */
function bringBack(fields, known, now) {
  const { expires } = known.spec;
  raw.set(fields, "state", "waiting");
  raw.set(fields, "available_at", now);
  raw.set(fields, "expires_at", expires === null ? null : now + expires);
  raw.set(fields, "replays", known.replays + 1);
  raw.set(fields, "open", true);
  const cleared = ["finished_at", "next_retry_at", "auto_retries", "failures", "stalls", "archived", "cancel_requested", "result_expired"];
  for (const name of [...cleared, "result", "result_until", "error", "reason", "lane"]) fields.delete(name);
}

function filedAs(store, fields, known, rev) {
  const named = { id: known.id, queue: known.queue, task: known.task, seq: known.seq };
  if (raw.read(fields, "state") === "waiting") {
    const { priority, hook } = known.spec;
    return store.layout.readyKey({ ...named, priority, hook, availableAt: raw.read(fields, "available_at") }, rev);
  }
  const archived = raw.read(fields, "archived", false);
  return store.layout.doneKey({ ...named, state: known.state, finishedAt: known.finished_at ?? 0, archived }, rev);
}

function eventOf(verb, fields, known, now, stamp) {
  const event = new Map();
  raw.set(event, "job", known.id);
  event.set("seq", known.seq);
  raw.set(event, "generation", known.generation);
  raw.set(event, "n", raw.read(fields, "events"));
  raw.set(event, "kind", { replay: "replayed", archive: "archived", unarchive: "unarchived" }[verb]);
  raw.set(event, "at", now);
  raw.set(event, "queue", known.queue);
  raw.set(event, "task", known.task);
  raw.set(event, "state", raw.read(fields, "state"));
  raw.set(event, "attempt", known.attempt || null);
  raw.set(event, "failures", raw.read(fields, "failures") || null);
  return `{"stamp":${stamp},"place":0,"event":${raw.object(event)}}`;
}

function setData(record, { output: _, ...rest }) {
  raw.set(record, "data", Object.keys(rest).length ? rest : null);
}

const lastStamp = (events) => (events.length ? raw.digits(raw.fields(events.at(-1)), "stamp") : "0");

/** The queue's numbers: where a limit needs them exactly they are all in its `row`, else only totals of what is gone. */
function count(queue, verb, known, stamp) {
  const text = queue.get("row");
  const { state, archived } = known;
  if (text === undefined || text === "null") {
    if (verb !== "replay" || state === "cancelled") return;
    add(queue, state === "dead" ? "died_before" : "completed_before", 1);
    return;
  }
  const row = raw.fields(text);
  if (verb === "replay") {
    add(row, state, -1);
    if (archived) add(row, "archived", -1);
    if (archived && state === "dead") add(row, "archived_dead", -1);
    add(row, "waiting", 1);
    if (!known.spec.hook) add(row, "live", 1);
  } else {
    const by = verb === "archive" ? 1 : -1;
    add(row, "archived", by);
    if (state === "dead") add(row, "archived_dead", by);
  }
  queue.set("row", raw.object(row));
  raw.set(queue, "completed_before", raw.read(row, "processed", 0) - raw.read(row, "completed", 0));
  raw.set(queue, "died_before", raw.read(row, "died", 0) - raw.read(row, "dead", 0));
  queue.set("stamp", String(stamp));
}

function add(fields, name, by) {
  raw.set(fields, name, raw.read(fields, name, 0) + by);
}

/** Carry out a plan; false if a concurrent change was faster, and nothing was done. */
async function written(store, plan, id) {
  const { bucket, objects } = store;
  await Promise.all(plan.before.map(([key, body]) => bucket.put(key, body)));
  if (store.now - plan.now > LATE) {
    await bucket.remove(plan.filedUnder);
    return false;
  }
  const { done, unsure } = await objects.commit(plan.changes);
  if (!done && !(unsure && (await hasHappened(store, plan, id)))) {
    if (!unsure) await bucket.remove(plan.filedUnder);
    return false;
  }
  await publishEvent(store, plan);
  if (store.now - plan.now > YOUNG) await Promise.all(plan.before.map(([key, body]) => bucket.put(key, body)));
  if (store.now - plan.now > PUBLISHED_LATE) await publishAgain(store, plan);
  await Promise.all(plan.old.map((key) => bucket.remove(key)));
  return true;
}

/** After a lost response: whether the record contains our event. */
async function hasHappened(store, plan, id) {
  const { value } = await store.objects.one(await store.layout.job(id));
  return value !== null && (raw.fields(value).get("events") ?? "").includes(`"stamp":${plan.stamp},`);
}

/** A part of the feed is created, never overwritten: if its name is taken, another name is used. */
async function publishEvent(store, plan) {
  for (let { stamp, event } = plan; ; ) {
    const body = `{"events":[${event}]}`;
    if ((await store.bucket.swap(feedKey(stamp), body, null)).won) return;
    stamp = await plan.draw(store.now);
    event = stamped(event, stamp);
  }
}

async function publishAgain(store, plan) {
  const stamp = await plan.draw(store.now);
  await publishEvent(store, { ...plan, stamp, event: stamped(plan.event, stamp) });
}

const stamped = (event, stamp) => event.replace(/"stamp":\d+/, `"stamp":${stamp}`);
