// Why is this job not running? The facts that hold it back, the strongest first (src/millrace/app/why.py).

import { plural } from "../../core/text.js";
import { counted } from "./counts.js";
import { TASK_LIMITS } from "./layout.js";
import { lineOf, wordOf } from "./record.js";
import { refused } from "./problems.js";
import { settingsOf } from "./views.js";

const SHOWN = 5;

export async function why(store, id) {
  const job = await store.job(id);
  if (job === null) throw refused(404, "not_found", `There is no job ${id}.`);
  const now = store.now;
  const reasons = job.state === "waiting" ? await explained(store, job, now) : [];
  return { id, state: wordOf(job, now), reasons };
}

async function explained(store, job, now) {
  const [queue, limits, { queues }, records] = await Promise.all([
    store.queue(job.queue),
    store.setting(TASK_LIMITS),
    counted(store),
    store.values("workers/"),
  ]);
  const settings = settingsOf(queue ?? {});
  const ofTask = limits === null ? null : (JSON.parse(limits).rows[job.task] ?? null);
  const running = queues.find((one) => one.queue === job.queue)?.running ?? 0;
  const alive = records.map((text) => JSON.parse(text)).filter((one) => one.last_beat + one.ttl >= now).map((one) => one.info);
  const reasons = [
    ...paused(job, settings),
    ...notYet(job, now),
    ...limited(job, settings, ofTask, running),
    ...workers(job, alive),
  ];
  if (reasons.length === 0 && settings.rate !== null) {
    reasons.push(reason("queue_rate", `queue ${job.queue} starts at most ${settings.rate} jobs a second`));
  }
  if (reasons.length) return reasons;
  const ahead = await before(store, job, now);
  return [ahead ? reason("behind_others", `${plural(ahead, "job")} before it`) : reason("next", "it is next: a worker should claim it now")];
}

const reason = (code, text, command = null) => ({ code, text, command });

function paused(job, settings) {
  const found = [];
  if (settings.paused) found.push(reason("queue_paused", `queue ${job.queue} is paused`, `millrace resume ${job.queue}`));
  if (job.lane !== null && settings.paused_lanes.includes(job.lane)) {
    found.push(reason("lane_paused", `lane ${job.lane} is paused`, `millrace resume ${job.queue} --lane ${job.lane}`));
  }
  return found;
}

function notYet(job, now) {
  const found = [];
  if (job.blocked) {
    const named = job.parents.slice(0, SHOWN).join(", ") + (job.parents.length > SHOWN ? ", …" : "");
    found.push(reason("blocked", `it waits for ${plural(job.blocked, "other job")}: ${named}`));
  }
  if (job.available_at > now) {
    const after = job.failures ? ` after failure ${job.failures}` : "";
    found.push(reason("not_due", `it is due in ${span(job.available_at - now)}${after}`));
  } else if (!job.blocked && !job.open && lineOf(job) !== null) {
    const line = job.lane !== null ? `lane ${job.lane}` : `group ${job.spec.group}`;
    found.push(reason("line_busy", `another job of ${line} runs, is in backoff or is ahead of it; one job runs at a time`));
  }
  return found;
}

/** `ofTask`: {limits, running}, the count being of all queues and exact. */
function limited(job, settings, ofTask, running) {
  const { max_running: limit } = settings;
  if (limit !== null && running >= limit) {
    return [reason("queue_limit", `queue ${job.queue} runs ${running} jobs, and its limit is ${limit}`)];
  }
  const most = ofTask?.limits.max_running ?? null;
  if (most !== null && ofTask.running >= most) {
    return [reason("task_limit", `of task ${job.task}, at most ${plural(most, "job runs", "jobs run")} at a time`)];
  }
  return [];
}

function workers(job, alive) {
  if (alive.length === 0) return [reason("no_worker", "no worker is alive", "millrace worker --app …")];
  const serving = alive.filter((info) => (info.queues ?? []).includes(job.queue));
  if (serving.length === 0) return [reason("queue_unserved", `no live worker serves queue ${job.queue}`)];
  const able = serving.filter((info) => (info.tasks ?? []).includes(job.task));
  if (able.length === 0) return [reason("task_unknown", `no live worker of queue ${job.queue} has task ${job.task}`)];
  const slots = able.reduce((sum, info) => sum + (info.slots ?? 1), 0);
  const busy = able.reduce((sum, info) => sum + (info.running ?? []).length, 0);
  if (busy >= slots) return [reason("slots_busy", `all ${plural(slots, "slot")} of the workers that could run it are busy`)];
  return [];
}

/** How many due jobs come before it, according to the index. */
async function before(store, job, now) {
  const { entries } = await store.index.entries({ state: "ready", queue: job.queue });
  const seq = job.seq.padStart(19, "0");
  const first = (one) =>
    one.priority > job.spec.priority ||
    (one.priority === job.spec.priority &&
      (one.at < job.available_at || (one.at === job.available_at && one.seq.padStart(19, "0") < seq)));
  return entries.filter((one) => one.flags.startsWith("r") && one.at <= now && one.seq !== job.seq && first(one)).length;
}

function span(duration) {
  if (duration < 1_000) return `${Math.round(duration)}ms`;
  if (duration < 10_000) return `${(duration / 1_000).toFixed(1)}s`;
  const parts = [];
  let rest = Math.round(duration);
  for (const [size, unit] of [[86_400_000, "d"], [3_600_000, "h"], [60_000, "m"], [1_000, "s"]]) {
    const count = Math.floor(rest / size);
    rest %= size;
    if (count || parts.length) parts.push(`${count}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.filter((part) => !part.startsWith("0")).join(" ") || "0s";
}
