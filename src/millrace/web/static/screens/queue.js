// One queue: its counts, limits and lanes, and how to empty it.

import { h } from "../core/dom.js";
import { queuePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { count, plural, seconds } from "../core/text.js";
import { ask, sure } from "../parts/dialogs.js";
import { serving } from "../parts/attention.js";
import { badge, panel } from "../parts/elements.js";
import { state } from "../parts/icons.js";
import { lanes } from "../parts/lanes.js";
import { note } from "../parts/notes.js";
import { SETTINGS, read, shown, written } from "../parts/settings.js";
import { pause } from "./queues.js";

const STATES = ["ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled"];
const SERVING = 3; // workers that are named

export function makeQueue(app, route) {
  const [name] = route.rest;
  async function load(signal) {
    const ask = (path) => app.request("GET", path, { signal });
    const [queue, { workers }] = await Promise.all([ask(queuePath(name)), ask("/api/workers")]);
    return { queue, workers: serving(workers, name) };
  }

  /** Who serves it, what is late in it, and what it has done so far. */
  function lead(queue, workers) {
    const link = (one) => h("a", { href: to("workers", [], { worker: one.id }) }, one.id);
    const rest = workers.length - SERVING;
    const named = workers.slice(0, SERVING).map((one, n) => [n ? ", " : "", link(one)]);
    const waits = queue.oldest_ready === null
      ? "Nothing is due."
      : `The oldest due job has waited for ${seconds(queue.oldest_ready)}.`;
    const noWorker = queue.ready && !queue.paused
      ? h("strong", { class: "error" }, "No active worker serves it, and jobs are due.")
      : "No active worker serves it.";
    return h("p", { class: "lead", key: "lead" },
      workers.length ? ["Served by ", named, rest > 0 ? ` and ${count(rest)} more.` : "."] : noWorker,
      ` ${waits} Completed in total: ${count(queue.processed)}, dead in total: ${count(queue.died)}.`,
    );
  }

  function view({ queue, workers }) {
    return [
      h("div", { class: "title", key: "title" },
        h("div", null,
          h("p", { class: "crumbs" }, h("a", { href: to("queues") }, "Queues")),
          h("h1", null, name, queue.paused ? badge("paused", "warn") : null),
        ),
        h("div", { class: "actions" },
          app.can("pause") ? pause(app, name, queue.paused) : null,
          app.can("drain") ? h("button", { class: "danger", onclick: drain }, "Drain …") : null,
          app.can("obliterate") ? h("button", { class: "danger", onclick: () => obliterate(queue) },
            "Obliterate …",
          ) : null,
        )),
      lead(queue, workers),
      h("ul", { class: "states", key: "states" },
        STATES.map((key) => h("li", { key },
          h("a", { href: to("jobs", [], { queue: name, status: key }), class: `is-${key}${queue[key] ? "" : " zero"}` },
            state(key),
            h("strong", null, count(queue[key])),
          ),
        )),
      ),
      panel("Limits and settings", {
        id: "settings",
        aside: app.can("settings") ? h("button", { onclick: () => change(queue.settings) }, "Change …") : null,
      },
        h("dl", { class: "facts" },
          SETTINGS.map((one) => h("div", { key: one.name },
            h("dt", null, one.label),
            h("dd", null, shown(one, queue.settings[one.name])),
          )),
        )),
      queue.lanes.length ? panel(
        "Lanes",
        { id: "lanes", aside: h("span", { class: "hint" }, plural(queue.lanes.length, "lane")) },
        lanes(
          app,
          name,
          queue.lanes.map((lane) => (
            {
              ...lane,
              dead: lane.died,
              state: lane.paused ? "paused" : lane.running ? "processing" : "idle",
              current: lane.holder,
            }
          )),
        ),
      ) : null,
    ];
  }

  /** `typed`: the refused values, to be corrected. */
  async function change(settings, typed = null, wrong = "") {
    const fields = SETTINGS.map((one) => (
      {
        ...one,
        value: typed ? typed[one.name] : written(one, settings[one.name]),
        hint: [one.hint, one.none ? `empty: ${one.none}` : ""].filter(Boolean).join("; "),
      }
    ));
    const given = await ask({
      title: `Settings of queue ${name}`,
      text: "They apply to all workers immediately.",
      fields,
      submit: "Save",
      cancel: true,
      wrong,
    });
    if (!given) return;
    const changes = {};
    for (const one of SETTINGS) {
      const text = given[one.name].trim();
      if (text !== written(one, settings[one.name])) changes[one.name] = read(one, text);
    }
    if (!Object.keys(changes).length) return note("Nothing was changed");
    try {
      await app.request("PATCH", queuePath(name), { body: changes });
      note("Saved");
    } catch (error) {
      return change(settings, given, error.detail ?? String(error));
    }
    app.refresh();
  }

  async function drain() {
    const counted = await app.request(
      "POST",
      queuePath(name, "/drain"),
      { body: { dry_run: true } },
    ).catch((error) => note(error.detail, "wrong"));
    if (!counted) return;
    if (!counted.waiting) return note("No job is waiting in this queue");
    const jobs = plural(counted.waiting, "job");
    const agreed = await sure({
      title: `Cancel ${jobs} that wait${counted.waiting === 1 ? "s" : ""}?`,
      details: "Running jobs continue. Cancelled jobs can be replayed while they are kept.",
      submit: `Cancel ${jobs}`,
      danger: true,
    });
    if (agreed) app.act(
      "POST",
      queuePath(name, "/drain"),
      { dry_run: false },
      (got) => `Cancelled ${plural(got.cancelled, "job")}`,
    );
  }

  async function obliterate(queue) {
    const total = STATES.reduce((sum, key) => sum + queue[key], 0);
    const given = await ask({
      title: `Delete ${plural(total, "job")} permanently?`,
      text: "This deletes every job of this queue in any state, including running jobs. It cannot be undone.",
      fields: [
        { name: "name", label: `Type ${name} to confirm`, required: true, pattern: name.replace(/[.]/g, "\\.") },
      ],
      submit: "Delete them",
      cancel: true,
      danger: true,
    });
    if (given) app.act(
      "POST",
      queuePath(name, "/obliterate"),
      { dry_run: false, confirm: given.name },
      (got) => `Deleted ${plural(got.removed, "job")}`,
    );
  }

  return { load, view, title: () => name };
}
