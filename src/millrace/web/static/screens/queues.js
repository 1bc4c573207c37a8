// Every queue: what is in it, and whether it goes on.

import { h } from "../core/dom.js";
import { queuePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { count, seconds } from "../core/text.js";
import { badge, cell, empty, queueLink, table } from "../parts/bits.js";

const NUMBERS = [
  ["Ready", "ready"],
  ["Running", "running"],
  ["Scheduled", "scheduled"],
  ["Retrying", "retrying"],
  ["Blocked", "blocked"],
  ["Dead", "dead"],
  ["Completed", "completed"],
];

export function makeQueues(app) {
  const load = (signal) => app.request("GET", "/api/queues", { signal });

  function view({ queues }) {
    const columns = [
      { name: "Queue" },
      ...NUMBERS.map(([name]) => ({ name, class: "number" })),
      { name: "Oldest due", class: "number", title: "For how long the oldest due job has waited" },
      { name: "Ever completed", class: "number" },
      { name: "Ever dead", class: "number" },
      { name: "" },
    ];
    return [
      h("h1", { key: "title" }, "Queues"),
      queues.length ? table(columns, queues.map(row), { label: "Queues" }) : empty(
        "No queue has been used yet",
        "A queue begins with its first job.",
      ),
    ];
  }

  function row(one) {
    return h(
      "tr",
      { key: one.queue, "data-row": true },
      cell("Queue", { class: "head" }, queueLink(one.queue), one.paused ? badge("paused", "warn") : null),
      NUMBERS.map(([name, key]) => cell(
        name,
        { key, class: `number${one[key] ? "" : " zero"}` },
        one[key] ? h("a", { href: to("jobs", [], { status: key, queue: one.queue }) }, count(one[key])) : "0",
      )),
      cell("Oldest due", { class: "number" }, seconds(one.oldest_ready)),
      cell("Ever completed", { class: "number" }, count(one.processed)),
      cell("Ever dead", { class: "number" }, count(one.died)),
      h("td", { class: "actions" }, app.can("pause") ? pause(app, one.queue, one.paused) : null),
    );
  }

  return { load, view };
}

export function pause(app, queue, paused, lane = null) {
  const what = lane === null ? `Queue ${queue}` : `Lane ${lane}`;
  const deed = () => app.act(
    "POST",
    queuePath(queue, paused ? "/resume" : "/pause"),
    lane === null ? {} : { lane },
    paused ? `${what} goes on` : `${what} is paused; what runs goes on`,
  );
  return h(
    "button",
    {
      class: paused ? "main" : "",
      "aria-label": `${paused ? "Resume" : "Pause"} ${what.toLowerCase()}`,
      onclick: deed,
    },
    paused ? "Resume" : "Pause",
  );
}
