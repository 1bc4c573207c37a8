// Counts of jobs per queue, from the index; if its keys contradict each other, the job's record decides.

import { laneKey, word } from "./layout.js";
import * as raw from "./raw_json.js";
import { refused } from "./problems.js";
import { SUMS } from "./tables.js";
import { seconds, settingsOf, settingsShown, when } from "./views.js";

/** {queues: counts in the shape of the API, complete} */
export async function counted(store) {
  const [queues, { entries, complete }] = await Promise.all([store.queues(), store.index.entries()]);
  const now = store.now;
  const byQueue = new Map();
  for (const entry of await sure(store, entries)) {
    if (!byQueue.has(entry.queue)) byQueue.set(entry.queue, []);
    byQueue.get(entry.queue).push(entry);
  }
  const words = await Promise.all(queues.map((queue) => word(queue.name)));
  return { complete, queues: queues.map((queue, place) => countsOf(queue, byQueue.get(words[place]) ?? [], now)) };
}

/** One entry per job: if there are several, the one that its record names. */
async function sure(store, entries) {
  const times = new Map();
  for (const { seq } of entries) times.set(seq, (times.get(seq) ?? 0) + 1);
  const doubtful = entries.filter(({ seq }) => times.get(seq) > 1);
  const jobs = await store.jobs(doubtful);
  const filed = new Set(jobs.filter((job) => job !== null).map((job) => job.filed));
  return entries.filter(({ seq, key }) => times.get(seq) === 1 || filed.has(key));
}

function countsOf(queue, entries, now) {
  const of = (state) => entries.filter((one) => one.state === state);
  const has = (some, flag) => some.filter((one) => one.flags.includes(flag)).length;
  const finished = ["completed", "dead", "cancelled"].flatMap(of);
  const waiting = of("waiting");
  const blocked = has(waiting, "b");
  const free = waiting.filter((one) => !one.flags.includes("b"));
  const later = free.filter((one) => one.at > now);
  const retrying = has(later, "f");
  const due = free.filter((one) => one.at <= now && one.flags.includes("r")).map((one) => one.at);
  return {
    queue: queue.name,
    waiting: waiting.length,
    running: of("running").length,
    completed: of("completed").length,
    dead: of("dead").length,
    cancelled: of("cancelled").length,
    blocked,
    scheduled: later.length - retrying,
    retrying,
    ready: waiting.length - blocked - later.length,
    archived: has(finished, "a"),
    oldest_ready: due.length ? seconds(Math.max(0, now - due.reduce((a, b) => Math.min(a, b)))) : null,
    paused: settingsOf(queue).paused,
    processed: (queue.completed_before ?? 0) + of("completed").length,
    died: (queue.died_before ?? 0) + of("dead").length,
  };
}

export async function listQueues(store) {
  const { queues, complete } = await counted(store);
  return { now: when(store.now), queues, complete };
}

export async function getQueue(store, name) {
  const [queue, { queues }] = await Promise.all([store.queue(name), counted(store)]);
  const counts = queues.find((one) => one.queue === name);
  if (!queue || !counts) throw refused(404, "not_found", `Queue ${name} was never used.`);
  const settings = settingsOf(queue);
  return { ...counts, settings: settingsShown(settings), lanes: await lanesOf(store, name, settings) };
}

async function lanesOf(store, name, settings) {
  const named = await word(name);
  const keys = await Promise.all(Array.from({ length: settings.lanes ?? 0 }, (_, lane) => laneKey(name, lane)));
  const values = await Promise.all(keys.map((key) => store.setting(key, `lines/${named}/`)));
  return values.map((value, lane) => {
    const line = value === null ? new Map() : raw.fields(raw.fields(value).get("line"));
    const [waiting, live, processed, died] = ["waiting", "live", "processed", "died"].map((name) => raw.read(line, name, 0));
    const holder = raw.read(line, "holder") === null ? null : raw.digits(line, "holder");
    const paused = settings.paused_lanes.includes(lane);
    return { lane, waiting, running: live - waiting, holder, processed, died, paused };
  });
}

export async function listPools(store) {
  const pools = (await store.queues()).filter((queue) => settingsOf(queue).lanes !== null);
  return { pools: await Promise.all(pools.map((queue) => poolOf(store, queue))) };
}

export async function getPool(store, name) {
  const queue = await store.queue(name);
  if (!queue || settingsOf(queue).lanes === null) throw refused(404, "not_found", `There is no pool ${name}.`);
  return poolOf(store, queue);
}

async function poolOf(store, queue) {
  const settings = settingsOf(queue);
  const lanes = (await lanesOf(store, queue.name, settings)).map((one) => ({
    lane: one.lane,
    state: settings.paused || one.paused ? "paused" : one.running ? "processing" : "idle",
    waiting: one.waiting,
    running: one.running,
    processed: one.processed,
    dead: one.died,
    current: one.running ? one.holder : null,
    retrying: one.running ? null : one.holder,
  }));
  const sum = (what) => lanes.reduce((total, lane) => total + lane[what], 0);
  return {
    pool: queue.name,
    state: settings.paused ? "paused" : sum("running") ? "processing" : "idle",
    paused: settings.paused,
    max_depth: settings.max_depth,
    waiting: sum("waiting"),
    running: sum("running"),
    processed: sum("processed"),
    dead: sum("dead"),
    lanes,
  };
}

export async function overview(store, workers) {
  const { queues, complete } = await counted(store);
  const ages = queues.map((one) => one.oldest_ready).filter((age) => age !== null);
  const alive = workers.filter((one) => one.alive).length;
  return {
    now: when(store.now),
    store: `s3://${store.config.bucket}/${store.config.prefix ?? ""}`.replace(/\/$/, ""),
    version: store.config.version ?? "",
    queues: queues.length,
    ...Object.fromEntries(SUMS.map((name) => [name, queues.reduce((total, one) => total + one[name], 0)])),
    oldest_ready: ages.length ? Math.max(...ages) : null,
    workers: alive,
    stale_workers: workers.length - alive,
    complete,
  };
}
