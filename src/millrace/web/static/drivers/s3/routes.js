// Routes: the paths of the HTTP API that a bucket supports, and `versions`, which only a bucket supports.

import { actOn } from "./actions.js";
import { bulk } from "./bulk.js";
import { getPool, getQueue, listPools, listQueues, overview } from "./counts.js";
import { causes } from "./dead.js";
import { listJobs } from "./search.js";
import { fingerprint } from "./fingerprint.js";
import { throughput } from "./throughput.js";
import { diff, history } from "./history.js";
import { queueKey } from "./layout.js";
import { getSchedule, health, listSchedules, listWorkers } from "./workers.js";
import { HIDDEN } from "./secrets.js";
import { refused } from "./problems.js";
import { settingsOf, shown, when } from "./views.js";
import { versions, versionsDiff } from "./versions.js";
import { why } from "./why.js";

const act = (verb) => async (store, { path: [id], body }) => (await actOn(store, verb, [id], { rev: body?.rev ?? null }))[0];

const ROUTES = [
  ["GET", "/health", (store) => health(store)],
  ["GET", "/api/me", () => ({ role: "operator", name: "bucket" })],
  ["GET", "/api/overview", async (store, { signal }) => overview(store, (await listWorkers(store, signal)).workers)],
  ["GET", "/api/throughput", (store) => throughput(store)],
  ["GET", "/api/redaction", (store) => ({ phrases: store.redaction.phrases, shown_as: HIDDEN })],
  ["GET", "/api/jobs", (store, { query, signal }) => listJobs(store, query, signal)],
  ["GET", "/api/jobs/*", (store, { path: [id] }) => getJob(store, id)],
  ["GET", "/api/jobs/*/why", (store, { path: [id] }) => why(store, id)],
  ["GET", "/api/jobs/*/history", (store, { path: [id] }) => history(store, id)],
  ["GET", "/api/jobs/*/history/diff", (store, { path: [id], query }) => diff(store, id, query)],
  ["GET", "/api/jobs/*/versions", (store, { path: [id], query }) => versions(store, id, query)],
  ["GET", "/api/jobs/*/versions/diff", (store, { path: [id], query }) => versionsDiff(store, id, query)],
  ["GET", "/api/jobs/*/links", (store, { path: [id] }) => links(store, id)],
  ["POST", "/api/jobs/*/replay", act("replay")],
  ["POST", "/api/jobs/*/archive", act("archive")],
  ["POST", "/api/jobs/*/unarchive", act("unarchive")],
  ["POST", "/api/bulk", (store, { body }) => bulk(store, body ?? {})],
  ["GET", "/api/dead", (store, { query, signal }) => causes(store, query, signal)],
  ["GET", "/api/queues", (store) => listQueues(store)],
  ["GET", "/api/queues/*", (store, { path: [name] }) => getQueue(store, name)],
  ["GET", "/api/pools", (store) => listPools(store)],
  ["GET", "/api/pools/*", (store, { path: [name] }) => getPool(store, name)],
  ["GET", "/api/workers", (store, { signal }) => listWorkers(store, signal)],
  ["GET", "/api/schedules", (store, { query }) => listSchedules(store, query)],
  ["GET", "/api/schedules/*", (store, { path: [name] }) => getSchedule(store, name)],
].map(([method, path, answer]) => ({ method, parts: path.split("/"), answer }));

export async function answered(store, method, address, { query, body, signal }) {
  const parts = address.split("/");
  for (const route of ROUTES) {
    if (route.method !== method || route.parts.length !== parts.length) continue;
    if (!route.parts.every((part, place) => part === "*" || part === parts[place])) continue;
    const path = parts.filter((_, place) => route.parts[place] === "*").map(named);
    return route.answer(store, { path, query, body, signal });
  }
  throw refused(404, "not_here", "A bucket without a server cannot do this. On a machine with access to it: millrace serve");
}

/** What stands for a name in a path: see core/paths.js. */
function named(part) {
  return part === "~." || part === "~.." ? part.slice(1) : decodeURIComponent(part);
}

async function getJob(store, id) {
  const job = await store.job(id, { large: true });
  if (job === null) throw refused(404, "not_found", `There is no job ${id}.`);
  return {
    ...shown(job, store.now, store.redaction),
    ...(job.finished_at === null ? {} : { expires_at: await removedAt(store, job) }),
    fingerprint: job.state === "dead" ? await fingerprint(job) : null,
  };
}

/** When the record of a finished job is removed, by the current settings of its queue. */
async function removedAt(store, job) {
  const queue = await store.objects.one(await queueKey(job.queue));
  const settings = settingsOf(queue.value === null ? {} : JSON.parse(queue.value));
  const keep = job.state === "dead" ? settings.keep_dead : settings.keep_completed;
  return keep === null ? null : when(job.finished_at + keep);
}

/** Links to large payloads and results, good for a quarter of an hour: {links: {input: url, …}}. What is in them is
 * shown as it is, so there are none where fields are to be hidden. */
async function links(store, id) {
  const job = await store.job(id, { large: true });
  if (job === null) throw refused(404, "not_found", `There is no job ${id}.`);
  const clean = JSON.stringify(shown(job, store.now, store.redaction)).includes(HIDDEN) ? [] : Object.entries(job.data);
  return { id, links: Object.fromEntries(await Promise.all(clean.map(async ([what, key]) => [what, await store.bucket.link(key)]))) };
}
