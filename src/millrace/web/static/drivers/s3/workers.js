// Workers, schedules and the health of the store.

import { find, readQuery } from "./search.js";
import { refused } from "./problems.js";
import { scheduleShown, when, workerShown } from "./views.js";

const MOST_RUNNING = 2_000;

/** Alive workers first, each with the jobs it holds according to their records. */
export async function listWorkers(store, signal) {
  const [records, held] = await Promise.all([store.values("workers/"), heldByWorker(store, signal)]);
  const now = store.now;
  const workers = records.map((text) => JSON.parse(text)).map((one) => workerShown(one, now, held.get(one.info.id) ?? []));
  workers.sort((a, b) => b.alive - a.alive || (a.id < b.id ? -1 : 1));
  return { now: when(now), workers };
}

async function heldByWorker(store, signal) {
  const held = new Map();
  const search = { ...readQuery({ status: "running", all: true }, store, signal), limit: 200 };
  for (let seen = 0; seen < MOST_RUNNING; ) {
    const page = await find(store, search);
    for (const job of page.jobs) held.set(job.worker, [...(held.get(job.worker) ?? []), job.id]);
    seen += page.jobs.length;
    search.cursor = page.cursor;
    if (page.cursor === null) break;
  }
  return held;
}

export async function listSchedules(store, { after = "", limit = Infinity } = {}) {
  const plans = (await store.values("schedules/")).map((text) => scheduleShown(JSON.parse(text)));
  const found = plans.filter((one) => one.name > after).sort((a, b) => (a.name < b.name ? -1 : 1));
  return { schedules: found.slice(0, limit), next: found.length > limit ? found[limit - 1].name : null };
}

export async function getSchedule(store, name) {
  const found = (await listSchedules(store)).schedules.find((one) => one.name === name);
  if (!found) throw refused(404, "not_found", `There is no schedule ${name}.`);
  return found;
}

/** Includes facts about the bucket: whether it keeps versions, and the difference to this machine's clock. */
export async function health(store) {
  const versioning = await store.bucket.versioning().catch(() => null);
  const notes = [];
  if (versioning !== null && versioning !== "Enabled") {
    notes.push("The bucket keeps no versions, so only events are available. `millrace init` turns versioning on.");
  }
  const off = store.bucket.clock.difference;
  if (Math.abs(off) > 2_000) notes.push(`This machine's clock is ${Math.abs(off) / 1_000} s ${off > 0 ? "ahead of" : "behind"} the bucket's.`);
  return { status: "ok", version: store.config.version ?? "", versioning, clock_off: off / 1_000, notes };
}
