// Does anything need attention now? What would make an operator act, the worst first; the same for the overview, the
// health screen and its badge in the menu.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count, instant, plural, seconds, whole } from "../core/text.js";
import { wasAborted } from "../drivers/problem.js";
import { icon } from "./icons.js";

export const LATE = 5 * 60; // seconds after which a due job should have been claimed
const LATELY = "1h";
const MOST_RUNNING = 500;
const MOST_DEAD = 100;
// How often it is checked while another screen is open; a bucket charges for every request.
const RARELY = { served: 30_000, alone: 120_000 };
const SHOWN = 3;
const LEVELS = {
  bad: ["dead", "wrong"],
  warn: ["stale", "look at this"],
  note: ["waiting", "to know"],
  good: ["completed", "well"],
};

export class Attention {
  #app;
  #at = -Infinity;
  #under = null;
  seen = null; // {queues, workers, running: Map of id → job, dead: {jobs, more} of the last hour, or null}

  constructor(app) {
    this.#app = app;
  }

  /** Data that is at most `age` milliseconds old; concurrent callers share one request. */
  async load(age = this.#app.can("events") ? RARELY.served : RARELY.alone) {
    if (this.seen && Date.now() - this.#at < age) return this.seen;
    this.#under ??= this.#look().finally(() => {
      this.#under = null;
    });
    return this.#under;
  }

  /** Drop the cached data, because this page has changed something. */
  forget() {
    this.#at = -Infinity;
  }

  async #look() {
    const ask = (path, query) => this.#app.request("GET", path, { query });
    const lately = { status: "dead", finished_from: LATELY, limit: MOST_DEAD };
    const [{ queues }, { workers }, running, dead] = await Promise.all([
      ask("/api/queues"),
      ask("/api/workers"),
      ask("/api/jobs", { status: "running", limit: MOST_RUNNING, oldest: true }),
      this.#app.can("ended") ? ask("/api/jobs", lately) : null,
    ]);
    this.seen = {
      queues,
      workers,
      running: new Map(running.jobs.map((job) => [job.id, job])),
      dead: dead && { jobs: dead.jobs, more: dead.cursor !== null },
    };
    this.#at = Date.now();
    return this.seen;
  }

  /** For the badge, in addition to what the screen has loaded; the screen reports a refusal. */
  async glance() {
    try {
      await this.load();
    } catch (error) {
      if (!wasAborted(error) && !error.detail) throw error;
    }
  }

  get findings() {
    return this.seen ? findings(this.seen, this.#app.now()) : [];
  }
}

/** [{code, level, title, text, href}], the worst first; none when nothing needs attention. */
export function findings({ queues, workers, running, dead }, now) {
  const order = Object.keys(LEVELS);
  const found = [...unserved(queues, workers), ...silent(workers, running, now), ...newlyDead(dead, now)];
  found.push(...paused(queues), ...late(queues, workers));
  return found.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
}

/** Active workers that serve a queue. */
export function serving(workers, queue) {
  return workers.filter((one) => one.alive && one.queues.includes(queue));
}

function unserved(queues, workers) {
  const due = queues.filter((one) => one.ready && !one.paused && !serving(workers, one.queue).length);
  if (!due.length) return [];
  const jobs = due.reduce((sum, one) => sum + one.ready, 0);
  const waiting = plural(jobs, "due job waits", "due jobs wait");
  if (!workers.some((one) => one.alive)) {
    const text = `${waiting}: millrace worker --app module:app`;
    return [{ code: "no_worker", level: "bad", title: "No worker is active", text, href: to("workers") }];
  }
  const names = listed(due.map((one) => one.queue));
  const title = `No active worker serves ${names}`;
  const href = due.length === 1 ? to("queues", [due[0].queue]) : to("queues");
  return [{ code: "unserved", level: "bad", title, text: waiting, href }];
}

function silent(workers, running, now) {
  const holding = workers.filter((one) => !one.alive && one.running.length);
  return holding.map((worker) => {
    const title = `${worker.id} is stale and holds ${plural(worker.running.length, "job")}`;
    const { lonely, text } = takeover(worker, running, workers, now);
    const level = lonely.length ? "bad" : "warn";
    return { code: "silent", level, title, text, href: to("workers", [], { worker: worker.id }) };
  });
}

/** What happens to the jobs of a stale worker: {lonely: queues that no other worker serves, text}. */
export function takeover(worker, running, workers, now) {
  const jobs = worker.running.map((id) => running.get(id)).filter(Boolean);
  const queues = [...new Set(jobs.map((job) => job.queue))];
  const lonely = queues.filter((queue) => !serving(workers, queue).length);
  const last = Math.max(...jobs.map((job) => instant(job.lease_until)).filter((at) => !Number.isNaN(at)), 0);
  const them = worker.running.length === 1 ? "it" : "them";
  const whose = worker.running.length === 1 ? "Its lease" : "Their leases";
  const served = queues.length ? `serves ${listed(queues)}` : "is free";
  const next = `any active worker reclaims ${them}, and a worker that ${served} runs ${them} again`;
  const when = last > now
    ? `${whose} ${worker.running.length === 1 ? "expires" : "expire"} in ${whole(last - now)}; then ${next}`
    : `${whose} ${worker.running.length === 1 ? "has" : "have"} expired: ${next}`;
  return { lonely, text: `${when}.${lonely.length ? ` No other active worker serves ${listed(lonely)}.` : ""}` };
}

function newlyDead(dead, now) {
  if (!dead?.jobs.length) return [];
  const number = dead.jobs.length;
  const last = Math.max(...dead.jobs.map((job) => instant(job.finished_at)));
  return [
    {
      code: "newly_dead",
      level: "bad",
      title: `${dead.more ? "More than " : ""}${plural(number, "job")} died in the last hour`,
      text: `${listed(byTask(dead.jobs))}; the last ${whole(Math.max(0, now - last))} ago`,
      href: to("dead", [], { finished_from: LATELY }),
    },
  ];
}

/** The most frequent first. */
function byTask(jobs) {
  const found = new Map();
  for (const { task } of jobs) found.set(task, (found.get(task) ?? 0) + 1);
  return [...found].sort(([, a], [, b]) => b - a).map(([task, number]) => `${count(number)} ${task}`);
}

function paused(queues) {
  const words = (one) => plural(one.ready, "due job waits in it", "due jobs wait in it");
  return queues.filter((one) => one.paused && one.ready).map((one) => ({
    code: "paused",
    level: "warn",
    title: `Queue ${one.queue} is paused`,
    text: words(one),
    href: to("queues", [one.queue]),
  }));
}

function late(queues, workers) {
  const found = queues.filter((one) => !one.paused && one.oldest_ready > LATE && serving(workers, one.queue).length);
  const words = (one) =>
    `its oldest due job has waited for ${seconds(one.oldest_ready)}, ${plural(one.ready, "job is", "jobs are")} due`;
  return found.map((one) => ({
    code: "late",
    level: "warn",
    title: `Jobs of queue ${one.queue} are waiting too long`,
    text: words(one),
    href: to("queues", [one.queue]),
  }));
}

/** a, b and c; a, b, c and 4 more. */
export function listed(names) {
  const shown = names.slice(0, names.length === SHOWN + 1 ? SHOWN + 1 : SHOWN);
  const rest = names.length - shown.length;
  if (rest) return `${shown.join(", ")} and ${count(rest)} more`;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : (shown[0] ?? "");
}

export function finding({ level, title, text, href }) {
  const [shape, word] = LEVELS[level];
  return h("li", { key: title, class: `is-${level}` },
    icon(shape, word),
    h("p", null, h("strong", null, title), text ? h("span", { class: "by" }, ` ${text}`) : null),
    href ? h("a", { href, "aria-label": `Look: ${title}` }, "Look") : null,
  );
}

/** The line at the top of the overview. */
export function verdict(seen, found) {
  if (!seen) return h("section", { class: "verdict", key: "verdict" }, h("p", { class: "hint" }, "Looking …"));
  if (found.length) {
    return h("section", { class: `verdict is-${found[0].level}`, key: "verdict", "aria-label": "Needs attention" },
      h("ul", { class: "checks" }, found.map(finding)),
    );
  }
  const active = seen.workers.filter((one) => one.alive).length;
  const words = [
    plural(active, "worker is active", "workers are active"),
    "no job has waited for more than five minutes",
    seen.dead ? "no job died in the last hour" : "",
  ].filter(Boolean).join(", ");
  return h("section", { class: "verdict is-good", key: "verdict", "aria-label": "Needs attention" },
    h("ul", { class: "checks" }, finding({ level: "good", title: "Nothing needs attention", text: words })),
  );
}

/** How many things need attention, if there are any. */
export function alarm(found) {
  if (!found.length) return null;
  const label = plural(found.length, "thing needs attention", "things need attention");
  const props = { class: `alarm is-${found[0].level}`, title: label, role: "img", "aria-label": label };
  return h("span", props, count(found.length));
}
