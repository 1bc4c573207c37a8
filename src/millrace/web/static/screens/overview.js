// All queues at a glance: how much waits and for how long, how fast it goes, what fails, and what happens right now.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count, errorText, plural, rate, seconds } from "../core/text.js";
import { badge, cell, empty, jobLink, panel, queueLink, table, when } from "../parts/bits.js";
import { chart } from "../parts/chart.js";
import { icon, state } from "../parts/icons.js";
import { flow } from "../parts/flow.js";

const STATES = ["ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled"];
const LATEST = 12;
const DEAD_SHOWN = 5;
const QUEUES_SHOWN = 12;

export function makeOverview(app) {
  let latest = [];
  const flowing = flow(app);
  const hear = (event) => {
    if (event.kind === "event") latest = [event, ...latest.slice(0, LATEST - 1)];
  };
  app.listeners.add(hear);

  async function load(signal) {
    const ask = (path, query) => app.request("GET", path, { signal, query });
    const [all, queues, dead] = await Promise.all([
      ask("/api/overview"),
      ask("/api/queues"),
      ask("/api/jobs", { status: "dead", limit: DEAD_SHOWN }),
    ]);
    return { all, queues: queues.queues, dead: dead.jobs, flow: await flowing.load(all, signal), latest };
  }

  function view(data) {
    return [
      h("h1", { key: "title" }, "Overview"),
      figures(data),
      h("div", { class: "columns even", key: "columns" }, throughput(data.flow), happening(app)),
      queues(data.queues),
      failures(app, data.dead),
    ];
  }

  function happening() {
    if (!app.can("events")) return null;
    const rows = latest.map((event) => event.data());
    return panel(
      "Happening now",
      { id: "now" },
      rows.length
        ? h("ol", { class: "feed" }, rows.map((event) => step(event, app)))
        : (
          app.pulse.pace === "live" ? empty("Quiet", "Each step of each job is shown here as it happens.") : empty(
            "Live events are off",
            "They are on when this page looks “live”, above.",
          )
        ),
    );
  }

  return { load, view, leave: () => app.listeners.delete(hear) };
}

function step(event, app) {
  return h(
    "li",
    { key: `${event.job} ${event.generation} ${event.n}`, class: `is-${event.state}` },
    icon(event.kind),
    h("span", { class: "kind" }, event.kind),
    h("span", { class: "task" }, event.task),
    jobLink(event.job),
    when(event.at, app.now),
  );
}

function figures({ all, flow }) {
  const stale = all.stale_workers;
  return h(
    "div",
    { class: "figures", key: "figures" },
    h("ul", { class: "states" }, STATES.map((name) => stateFigure(name, all[name]))),
    h(
      "dl",
      { class: "vitals" },
      vital("Oldest due job waits", seconds(all.oldest_ready), all.oldest_ready > 60 ? "slow" : ""),
      vital("Completed", flow ? rate(flow.now.completed) : "…"),
      vital("Died", flow ? rate(flow.now.died) : "…", flow?.now.died > 0 ? "bad" : ""),
      vital(
        "Workers",
        [
          count(all.workers),
          stale ? h("a", { href: to("workers"), class: "warn" }, icon("stale"), `${count(stale)} stale`) : null,
        ],
        all.workers === 0 && all.waiting ? "bad" : "",
      ),
    ),
  );
}

function stateFigure(name, number) {
  return h(
    "li",
    { key: name },
    h(
      "a",
      { href: to("jobs", [], { status: name }), class: `is-${name}${number ? "" : " zero"}` },
      state(name),
      h("strong", null, count(number)),
    ),
  );
}

function vital(name, value, kind = "") {
  return h("div", { key: name, class: kind }, h("dt", null, name), h("dd", null, value));
}

function throughput(flow) {
  const legend = h(
    "span",
    { class: "legend" },
    h("i", { class: "completed" }),
    "completed",
    h("i", { class: "died" }),
    "dead",
  );
  return panel(
    "Throughput",
    { id: "throughput", aside: legend },
    flow && flow.points.length > 1 ? chart(flow.points, flow.step) : empty(
      "Counting …",
      "The chart begins after a few seconds.",
    ),
  );
}

function queues(all) {
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
  ].map((name, n) => ({ name, class: n ? "number" : "" }));
  const rest = all.length - busiest.length;
  return panel(
    "Queues",
    { id: "queues", aside: rest > 0 ? h("a", { href: to("queues") }, `all ${plural(all.length, "queue")}`) : null },
    all.length
      ? table(columns, busiest.map(queueRow), { label: "Queues" })
      : empty("No queue has been used yet", "Put a first job in: millrace submit TASK '{\"a\": 1}'"),
  );
}

function queueRow(one) {
  const number = (name, key) => cell(
    name,
    { class: `number${one[key] ? "" : " zero"}` },
    one[key] ? h("a", { href: to("jobs", [], { status: key, queue: one.queue }) }, count(one[key])) : "0",
  );
  return h(
    "tr",
    { key: one.queue, "data-row": true },
    cell("Queue", { class: "head" }, queueLink(one.queue), one.paused ? badge("paused", "warn") : null),
    number("Ready", "ready"),
    number("Running", "running"),
    number("Scheduled", "scheduled"),
    number("Retrying", "retrying"),
    number("Blocked", "blocked"),
    number("Dead", "dead"),
    cell("Oldest due", { class: "number" }, seconds(one.oldest_ready)),
  );
}

function failures(app, dead) {
  const rows = dead.map((job) =>
    h(
      "tr",
      { key: job.id, "data-row": true },
      cell("Job", { class: "head" }, jobLink(job.id)),
      cell("Task", null, job.task),
      cell("Error", { class: "error" }, errorText(job.error) || job.reason || "–"),
      cell("Died", { class: "number" }, when(job.finished_at, app.now)),
    ),
  );
  const columns = [{ name: "Job" }, { name: "Task" }, { name: "Error" }, { name: "Died", class: "number" }];
  return panel(
    "Latest dead jobs",
    { id: "failures", aside: dead.length ? h("a", { href: to("dead") }, "by cause") : null },
    dead.length ? table(columns, rows, { label: "Latest dead jobs" }) : empty("No job is dead", ""),
  );
}
