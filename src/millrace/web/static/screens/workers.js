// Workers: who is alive, who went silent with jobs in hand, and who has been at the same job for long.

import { h } from "../core/dom.js";
import { count, instant, plural } from "../core/text.js";
import { badge, bar, cell, command, empty, jobLink, queueLink, since, table, when } from "../parts/bits.js";
import { icon } from "../parts/icons.js";

const SHOWN = 6;
const MOST_RUNNING = 500;
const LONG = 5 * 60_000;

export function makeWorkers(app) {
  const unfolded = new Set();

  async function load(signal) {
    const ask = (path, query) => app.request("GET", path, { signal, query });
    const [
      { workers },
      { jobs },
    ] = await Promise.all([
      ask("/api/workers"),
      ask("/api/jobs", { status: "running", limit: MOST_RUNNING, oldest: true }),
    ]);
    return { workers, jobs: new Map(jobs.map((job) => [job.id, job])) };
  }

  function view({ workers, jobs }, { query }) {
    const told = workers.map((worker) => (
      { worker, running: worker.running.map((id) => jobs.get(id) ?? { id, started_at: null, task: "" }) }
    ));
    const stuck = told.filter(({ worker, running }) => running.length && (!worker.alive || running.some(long)));
    const columns = [
      { name: "Worker" },
      { name: "State" },
      { name: "Runs" },
      { name: "Slots", class: "number" },
      { name: "Completed", class: "number" },
      { name: "Failed", class: "number" },
      { name: "Last beat", class: "number" },
    ];
    return [
      h("h1", { key: "title" }, "Workers"),
      stuck.length ? warning(stuck) : null,
      workers.length
        ? table(columns, told.map((one) => row(one, query.worker)), { label: "Workers" })
        : empty("No worker has been seen", "Jobs wait until one runs.", command("millrace worker --app module:app")),
    ];
  }

  function long(job) {
    return job.started_at && app.now() - instant(job.started_at) > LONG;
  }

  function warning(stuck) {
    return h("ul", {
      class: "warnings",
      key: "stuck",
      "aria-label": "What may be stuck",
    }, stuck.map(({ worker, running }) => {
      const slow = running.filter(long);
      return h("li", { key: worker.id }, icon("stale"), h("p", null, h("strong", null, worker.id), worker.alive
        ? [
          ` has run ${slow.length === 1 ? "a job" : plural(slow.length, "job")} for long: `,
          jobLink(slow[0].id),
          ", for ",
          since(slow[0].started_at, app.now),
        ]
        : [
          " went silent ",
          when(worker.last_beat, app.now),
          ` and still holds ${plural(running.length, "job")}. When their leases end, other workers take them over: `,
          jobLink(running[0].id),
        ]));
    }));
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
        h(
          "span",
          { class: `state is-${worker.alive ? "alive" : "stale"}` },
          icon(worker.alive ? "alive" : "stale"),
          worker.alive ? "active" : "stale",
        ),
      ),
      cell(
        "Runs",
        { class: "runs" },
        shown.length ? h(
          "ul",
          null,
          shown.map((job) => h(
            "li",
            { key: job.id, class: long(job) ? "long" : "" },
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
      cell("Last beat", { class: "number" }, when(worker.last_beat, app.now)),
    );
  }

  return { load, view };
}

