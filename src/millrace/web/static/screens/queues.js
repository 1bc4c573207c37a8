// All queues: their jobs by state, and whether they are paused.

import { h } from "../core/dom.js";
import { queuePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { count, seconds } from "../core/text.js";
import { serving } from "../parts/attention.js";
import { badge, cell, empty, queueLink, table } from "../parts/elements.js";
import { incomplete, widen } from "../parts/incomplete.js";

const NUMBERS = [
  ["Ready", "ready"],
  ["Running", "running"],
  ["Scheduled", "scheduled"],
  ["Retrying", "retrying"],
  ["Blocked", "blocked"],
  ["Dead", "dead"],
  ["Completed", "completed"],
];

export const PARTLY =
  "Not all finished jobs were examined: of completed, dead and cancelled ones, the newest are counted.";

export function makeQueues(app) {
  async function load(signal) {
    const ask = (path) => app.request("GET", path, { signal });
    const [{ queues, complete }, { workers }] = await Promise.all([ask("/api/queues"), ask("/api/workers")]);
    return { queues, complete, workers };
  }

  function view({ queues, complete, workers }) {
    const columns = [
      { name: "Queue" },
      ...NUMBERS.map(([name]) => ({ name, class: "number" })),
      { name: "Oldest due", class: "number", title: "For how long the oldest due job has waited" },
      { name: "Workers", class: "number", title: "Active workers that serve the queue" },
      { name: "" },
    ];
    return [
      h("h1", { key: "title" }, "Queues"),
      complete === false ? incomplete(PARTLY, widen(app)) : null,
      queues.length ? table(columns, queues.map((one) => row(one, workers)), { label: "Queues" }) : empty(
        "No queue has been used yet",
        "A queue begins with its first job.",
      ),
    ];
  }

  function row(one, workers) {
    return h("tr", { key: one.queue, "data-row": true },
      cell("Queue", { class: "head" }, queueLink(one.queue), one.paused ? badge("paused", "warn") : null),
      NUMBERS.map(([name, key]) => cell(
        name,
        { key, class: `number${one[key] ? "" : " zero"}` },
        one[key] ? h("a", { href: to("jobs", [], { status: key, queue: one.queue }) }, count(one[key])) : "0",
      )),
      cell("Oldest due", { class: "number" }, seconds(one.oldest_ready)),
      manned(one, serving(workers, one.queue).length),
      h("td", { class: "actions" }, app.can("pause") ? pause(app, one.queue, one.paused) : null),
    );
  }

  return { load, view };
}

/** How many active workers serve a queue: none is a warning where jobs are due, or held by a worker that is gone. */
export function manned(queue, number) {
  const worry = number === 0 && (queue.running > 0 || (queue.ready > 0 && !queue.paused));
  const title = worry ? "Jobs are due or running, and no active worker serves this queue" : null;
  return cell(
    "Workers",
    { class: `number${number || worry ? "" : " zero"}`, title },
    worry ? badge("none", "bad") : count(number),
  );
}

export function pause(app, queue, paused, lane = null) {
  const what = lane === null ? `Queue ${queue}` : `Lane ${lane}`;
  const action = () => app.act(
    "POST",
    queuePath(queue, paused ? "/resume" : "/pause"),
    lane === null ? {} : { lane },
    paused ? `${what} is resumed` : `${what} is paused; running jobs continue`,
  );
  return h(
    "button",
    {
      class: paused ? "main" : "",
      "aria-label": `${paused ? "Resume" : "Pause"} ${what.toLowerCase()}`,
      onclick: action,
    },
    paused ? "Resume" : "Pause",
  );
}
