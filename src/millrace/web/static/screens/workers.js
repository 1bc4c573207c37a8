// Workers: alive ones, stale ones that still hold jobs, and those that have run the same job for long.

import { h } from "../core/dom.js";
import { count, instant, plural, seconds } from "../core/text.js";
import { takeover } from "../parts/attention.js";
import { badge, bar, cell, command, empty, jobLink, queueLink, since, table, when } from "../parts/elements.js";
import { icon } from "../parts/icons.js";

const SHOWN = 6;
const NAMED = 3;
const FRESH = 1_000;
const WELL = 2;
const LONG = 5 * 60_000;

export function makeWorkers(app) {
  const unfolded = new Set();

  const load = () => app.attention.load(FRESH);

  function view({ workers, running: jobs }, { query }) {
    const judged = workers.map((worker) => (
      { worker, running: worker.running.map((id) => jobs.get(id) ?? { id, started_at: null, task: "" }) }
    ));
    judged.sort((a, b) => rank(a) - rank(b));
    const stuck = judged.filter((one) => rank(one) < WELL);
    const columns = [
      { name: "Worker" },
      { name: "State" },
      { name: "Runs" },
      { name: "Slots", class: "number" },
      { name: "Completed", class: "number" },
      { name: "Failed", class: "number" },
      { name: "Last heartbeat", class: "number" },
    ];
    return [
      h("h1", { key: "title" }, "Workers"),
      stuck.length ? warning(stuck, workers, jobs) : null,
      workers.length
        ? table(columns, judged.map((one) => row(one, query.worker)), { label: "Workers" })
        : empty("No worker has been seen", "Jobs wait until a worker starts.", command("millrace worker --app module:app")),
    ];
  }

  /** What may need attention comes first. */
  function rank({ worker, running }) {
    if (!worker.alive) return running.length ? 0 : WELL + 1;
    return running.some(long) ? 1 : WELL;
  }

  function long(job) {
    return job.started_at && app.now() - instant(job.started_at) > LONG;
  }

  function warning(stuck, workers, jobs) {
    return h("ul", {
      class: "warnings",
      key: "stuck",
      "aria-label": "Possibly stuck",
    }, stuck.map(({ worker, running }) =>
      h("li", { key: worker.id, class: worker.alive ? "is-warn" : "is-bad" },
        icon("stale"),
        h("p", null,
          h("strong", null, worker.id),
          worker.alive ? slow(running.filter(long)) : lost(worker, running, workers, jobs),
        ),
      )));
  }

  function slow(running) {
    return [
      " has been running ",
      named(running, (job) => [
        job.task ? `${job.task} ` : "",
        jobLink(job.id),
        " for ",
        since(job.started_at, app.now),
        job.timeout ? ` (its timeout is ${seconds(job.timeout)})` : " (it has no timeout)",
      ]),
      ".",
    ];
  }

  function lost(worker, running, workers, jobs) {
    return [
      " sent its last heartbeat ",
      when(worker.last_beat, app.now),
      ` and still holds ${plural(running.length, "job")}: `,
      named(running, (job) => jobLink(job.id)),
      ". ",
      takeover(worker, jobs, workers, app.now()).text,
    ];
  }

  /** Up to three of them, and how many more there are. */
  function named(running, text) {
    const rest = running.length - NAMED;
    const parts = running.slice(0, NAMED).map((job, n) => [n ? ", " : "", text(job)]);
    return rest > 0 ? [parts, ` and ${count(rest)} more`] : parts;
  }

  function row({ worker, running }, marked) {
    const sorted = [...running].sort((a, b) => instant(a.started_at) - instant(b.started_at));
    const shown = unfolded.has(worker.id) ? sorted : sorted.slice(0, SHOWN);
    const rest = sorted.length - shown.length;
    const unfold = () => {
      unfolded.add(worker.id);
      app.draw();
    };
    return h(
      "tr",
      {
        key: worker.id,
        "data-row": true,
        class: `${worker.alive ? "" : "stale"}${marked === worker.id ? " chosen" : ""}`,
      },
      cell(
        "Worker",
        { class: "head" },
        h("strong", { class: "id" }, worker.id),
        h("span", { class: "by" }, `${worker.host || "?"}, process ${worker.pid}, ${worker.version}`),
        h("span", { class: "by" }, "started ", when(worker.started_at, app.now)),
        h("span", { class: "by" }, "queues ", worker.queues.map((name, n) => [n ? ", " : "", queueLink(name)])),
      ),
      cell(
        "State",
        null,
        h("span", { class: `state is-${worker.alive ? "alive" : "stale"}` },
          icon(worker.alive ? "alive" : "stale"),
          worker.alive ? "active" : "stale",
        ),
      ),
      cell(
        "Runs",
        { class: "runs" },
        shown.length ? h("ul", null,
          shown.map((job) => h("li", { key: job.id, class: long(job) ? "long" : "" },
            job.task ? h("span", { class: "task" }, job.task) : null,
            jobLink(job.id),
            job.started_at ? h("span", { class: "by" }, since(job.started_at, app.now)) : null,
            long(job) ? badge("long", "warn") : null,
          )),
        ) : h("span", { class: "none" }, "nothing"),
        rest > 0 ? h("button", { class: "link", onclick: unfold }, `${count(rest)} more`) : null,
      ),
      cell(
        "Slots",
        { class: "number slots" },
        `${count(running.length)}/${count(worker.slots)}`,
        bar(running.length, worker.slots),
      ),
      cell("Completed", { class: "number" }, count(worker.completed)),
      cell("Failed", { class: `number${worker.failed ? "" : " zero"}` }, count(worker.failed)),
      cell("Last heartbeat", { class: "number" }, when(worker.last_beat, app.now)),
    );
  }

  return { load, view };
}

