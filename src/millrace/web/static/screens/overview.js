// All queues at a glance: how many jobs wait and for how long, throughput, failures, and live events.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count, errorText, plural, seconds } from "../core/text.js";
import { reason, step as wordOf } from "../core/labels.js";
import { badge, cell, empty, jobLink, panel, queueLink, since, table, when } from "../parts/elements.js";
import { LATE, serving, verdict } from "../parts/attention.js";
import { chart } from "../parts/chart.js";
import { icon, state } from "../parts/icons.js";
import { flow } from "../parts/throughput.js";
import { incomplete, widen } from "../parts/incomplete.js";
import { PARTLY, manned } from "./queues.js";

const STATES = ["ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled"];
const LATEST = 12;
const DEAD_SHOWN = 5;
const QUEUES_SHOWN = 12;
const FRESH = 5_000; // milliseconds for which the result is cached

export function makeOverview(app) {
  let latest = [];
  const hear = (event) => {
    if (event.kind === "event") latest = [event, ...latest.slice(0, LATEST - 1)];
  };
  app.listeners.add(hear);

  async function load(signal) {
    const ask = (path, query) => app.request("GET", path, { signal, query });
    const [all, queues, dead, seen, flowing] = await Promise.all([
      ask("/api/overview"),
      ask("/api/queues"),
      ask("/api/jobs", { status: "dead", limit: DEAD_SHOWN }),
      app.attention.load(FRESH),
      flow(app, signal),
    ]);
    return { all, queues: queues.queues, dead: dead.jobs, flow: flowing, latest, seen };
  }

  function view(data) {
    return [
      h("h1", { key: "title" }, "Overview"),
      verdict(data.seen, app.attention.findings),
      data.all.complete === false ? incomplete(PARTLY, widen(app)) : null,
      figures(data),
      h("div", { class: "columns even", key: "columns" }, throughput(data.flow), happening(app)),
      queues(data.queues, data.seen.workers),
      failures(app, data.dead),
    ];
  }

  function happening() {
    if (!app.can("events")) return null;
    const rows = latest.map((event) => event.data());
    return panel(
      "Latest events",
      { id: "now" },
      rows.length
        ? h("ol", { class: "feed" }, rows.map((event) => step(event, app)))
        : silence(),
    );
  }

  function silence() {
    if (app.timer.pace !== "live") return empty("Live events are off", "To see them, set updates to “live” above.");
    if (!app.connected) return empty("Connecting …", "Each step of each job is shown here once the live events are connected.");
    return empty("Quiet", "Each step of each job is shown here as it happens.");
  }

  return { load, view, leave: () => app.listeners.delete(hear) };
}

function step(event, app) {
  return h("li", { key: `${event.job} ${event.generation} ${event.n}`, class: `is-${event.state} kind-${event.kind}` },
    icon(event.kind),
    h("span", { class: "kind" }, wordOf(event.kind)),
    h("span", { class: "task" }, event.task),
    jobLink(event.job),
    when(event.at, app.now),
  );
}

function figures({ all, flow }) {
  const lately = (name) => (flow.minute ? `${count(flow.minute[name])} in the last minute` : "…");
  return h("div", { class: "figures", key: "figures" },
    h("ul", { class: "states" }, STATES.map((name) => stateFigure(name, all[name]))),
    h("dl", { class: "vitals" },
      vital("Oldest due", seconds(all.oldest_ready), all.oldest_ready > LATE ? "slow" : ""),
      vital("Completed", lately("completed")),
      vital("Died", lately("died"), flow.minute?.died > 0 ? "bad" : ""),
      vital("Workers", workforce(all), all.workers === 0 && all.waiting ? "bad" : ""),
    ),
  );
}

function workforce({ workers, stale_workers: stale }) {
  if (!stale) return count(workers);
  const words = workers ? `${count(stale)} of them stale` : "all of them stale";
  return [`${count(workers + stale)},`, h("a", { href: to("workers"), class: "warn" }, icon("stale"), words)];
}

function stateFigure(name, number) {
  return h("li", { key: name },
    h("a", { href: to("jobs", [], { status: name }), class: `is-${name}${number ? "" : " zero"}` },
      state(name),
      h("strong", null, count(number)),
    ),
  );
}

function vital(name, value, kind = "") {
  return h("div", { key: name, class: kind }, h("dt", null, name), h("dd", null, value));
}

function throughput(flow) {
  const legend = h("span", { class: "legend" },
    h("i", { class: "completed" }),
    "completed",
    h("i", { class: "died" }),
    "dead",
  );
  return panel(
    "Throughput",
    { id: "throughput", aside: legend },
    flow.points.length > 1 ? chart(flow.points, flow.step) : empty(
      "Counting …",
      "The chart begins after a few seconds.",
    ),
  );
}

function queues(all, workers) {
  const busiest = [...all].sort((a, b) => b.ready + b.running + b.retrying - (a.ready + a.running + a.retrying)).slice(
    0,
    QUEUES_SHOWN,
  );
  const columns = [
    "Queue",
    "Ready",
    "Running",
    "Scheduled",
    "Retrying",
    "Blocked",
    "Dead",
    "Oldest due",
    "Workers",
  ].map((name, n) => ({ name, class: n ? "number" : "" }));
  const rest = all.length - busiest.length;
  return panel(
    "Queues",
    { id: "queues", aside: rest > 0 ? h("a", { href: to("queues") }, `all ${plural(all.length, "queue")}`) : null },
    all.length
      ? table(columns, busiest.map((one) => queueRow(one, workers)), { label: "Queues" })
      : empty("No queue has been used yet", "Enqueue a first job: millrace submit TASK '{\"a\": 1}'"),
  );
}

function queueRow(one, workers) {
  const number = (name, key) => cell(
    name,
    { class: `number${one[key] ? "" : " zero"}` },
    one[key] ? h("a", { href: to("jobs", [], { status: key, queue: one.queue }) }, count(one[key])) : "0",
  );
  return h("tr", { key: one.queue, "data-row": true },
    cell("Queue", { class: "head" }, queueLink(one.queue), one.paused ? badge("paused", "warn") : null),
    number("Ready", "ready"),
    number("Running", "running"),
    number("Scheduled", "scheduled"),
    number("Retrying", "retrying"),
    number("Blocked", "blocked"),
    number("Dead", "dead"),
    cell("Oldest due", { class: "number" }, seconds(one.oldest_ready)),
    manned(one, serving(workers, one.queue).length),
  );
}

function failures(app, dead) {
  const rows = dead.map((job) =>
    h("tr", { key: job.id, "data-row": true },
      cell("Job", { class: "head" }, jobLink(job.id)),
      cell("Task", null, job.task),
      cell("Error", { class: "error" }, errorText(job.error) || reason(job.reason) || "–"),
      cell("Dead for", { class: "number" }, since(job.finished_at, app.now)),
    ),
  );
  const columns = [{ name: "Job" }, { name: "Task" }, { name: "Error" }, { name: "Dead for", class: "number" }];
  return panel(
    "Latest dead jobs",
    { id: "failures", aside: dead.length ? h("a", { href: to("dead") }, "by cause") : null },
    dead.length ? table(columns, rows, { label: "Latest dead jobs" }) : empty("No job is dead", ""),
  );
}
