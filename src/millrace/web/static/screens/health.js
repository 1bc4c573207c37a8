// Health: what needs attention, and the latest changes made through this server.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { clock, count, plural, seconds, span } from "../core/text.js";
import { finding, listed } from "../parts/attention.js";
import { cell, empty, panel, table } from "../parts/elements.js";

const AUDIT_SHOWN = 50;
const DOWN = {
  level: "bad",
  title: "The store does not respond",
  text: "jobs are neither claimed nor enqueued; see the server's log",
};

const IDLE = { level: "note", title: "No worker is active", text: "nothing is due either", href: to("workers") };

export function makeHealth(app) {
  async function load(signal) {
    const ask = (path, query) => app.request("GET", path, { signal, query });
    const began = performance.now();
    const health = await ask("/health");
    const took = performance.now() - began;
    if (health.status !== "ok") return { health, took, all: null }; // the other requests would fail
    const [all, { queues, workers }, audit, hidden] = await Promise.all([
      ask("/api/overview"),
      app.attention.load(0),
      app.can("audit") ? ask("/api/audit", { limit: AUDIT_SHOWN }) : null,
      ask("/api/redaction").catch(() => null),
    ]);
    return { health, took, all, queues, workers, audit: audit?.entries ?? null, hidden };
  }

  function view(data) {
    const { all, hidden, audit } = data;
    if (all === null) {
      return [h("h1", { key: "title" }, "Health"), panel("Checks", { id: "checks" }, h("ul", { class: "checks" }, finding(DOWN)))];
    }
    const known = [
      ["Store", all.store],
      ["Version", all.version],
      ["Response time", span(data.took)],
      ["Queues", count(all.queues)],
      ["Completed in total", count(all.processed)],
      ["Dead in total", count(all.died)],
    ];
    const facts = known.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value)));
    return [
      h("h1", { key: "title" }, "Health"),
      panel(
        "Checks",
        { id: "checks" },
        h("ul", { class: "checks" }, checks(data, app.attention.findings).map(finding)),
      ),
      panel("This store", { id: "store" }, h("dl", { class: "facts" }, facts)),
      hidden ? hiddenFields(hidden) : null,
      audit ? panel("Changes through this server", { id: "audit" }, log(audit)) : null,
    ];
  }

  return { load, view };
}

function hiddenFields({ phrases, shown_as: shownAs }) {
  return panel(
    "Hidden fields",
    { id: "hidden" },
    h("p", { class: "hint" }, `Fields with these words in their names are shown as ${shownAs}:`),
    h("p", { class: "phrases" }, phrases.map((phrase) => h("code", { key: phrase }, phrase))),
  );
}

/** What needs attention, and then what is well. */
function checks({ took, all, queues, workers }, found) {
  const good = (title, text, href) => ({ level: "good", title, text, href });
  const is = (...codes) => found.some((one) => codes.includes(one.code));
  const active = workers.filter((one) => one.alive);
  const slots = active.reduce((sum, one) => sum + one.slots, 0);
  const where = queues.filter((one) => one.dead).map((one) => one.queue);
  const dead = { level: "note", title: plural(all.dead, "dead job"), text: `in ${listed(where)}`, href: to("dead") };
  const age = all.oldest_ready === null
    ? "nothing is due"
    : `the oldest due job has waited for ${seconds(all.oldest_ready)}`;
  return [
    ...found,
    all.dead ? dead : null,
    active.length || is("no_worker") ? null : IDLE,
    good("The store responds", `in ${span(took)}`),
    active.length
      ? good(plural(active.length, "worker is active", "workers are active"), plural(slots, "slot"), to("workers"))
      : null,
    is("late", "unserved", "no_worker") ? null : good("No job has waited for more than five minutes", age, to("queues")),
    all.dead ? null : good("No job is dead", ""),
  ].filter(Boolean);
}

function log(entries) {
  if (!entries.length) return empty("Nothing was changed through this server since it started", "");
  const names = ["When", "Who", "What", "Of"].map((name) => ({ name }));
  const columns = [...names, { name: "Answer", class: "number" }];
  return table(columns, entries.map(logged), { label: "Changes" });
}

function logged(entry, n) {
  return h("tr", { key: `${entry.at} ${n}` },
    cell("When", { class: "head" }, h("time", { datetime: entry.at, title: entry.at }, clock(entry.at))),
    cell("Who", null, entry.who, h("span", { class: "by" }, ` ${entry.client}`)),
    cell("What", null, entry.action),
    cell("Of", { class: "facts-text" }, JSON.stringify(entry.facts)),
    cell("Answer", { class: "number" }, entry.status),
  );
}
