// Is everything well? What would worry an operator, in words, and what was changed through this server.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { clock, count, plural, seconds, span } from "../core/text.js";
import { cell, empty, panel, table } from "../parts/bits.js";
import { icon } from "../parts/icons.js";

const LATE = 60; // seconds after which a due job should have been taken
const AUDIT_SHOWN = 50;
const SHOWN = 5;
const LEVELS = { bad: ["dead", "wrong"], warn: ["stale", "look at this"], good: ["completed", "well"] };

export function makeHealth(app) {
  async function load(signal) {
    const ask = (path, query) => app.request("GET", path, { signal, query });
    const began = performance.now();
    const health = await ask("/health");
    const took = performance.now() - began;
    const [all, { queues }, { workers }, audit, hidden] = await Promise.all([
      ask("/api/overview"),
      ask("/api/queues"),
      ask("/api/workers"),
      app.can("audit") ? ask("/api/audit", { limit: AUDIT_SHOWN }) : null,
      ask("/api/redaction").catch(() => null),
    ]);
    return { health, took, all, queues, workers, audit: audit?.entries ?? null, hidden };
  }

  function view(data) {
    const { all, hidden, audit } = data;
    const known = [
      ["Store", all.store],
      ["Version", all.version],
      ["Answers in", span(data.took)],
      ["Queues", count(all.queues)],
      ["Ever completed", count(all.processed)],
      ["Ever dead", count(all.died)],
    ];
    const facts = known.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value)));
    return [
      h("h1", { key: "title" }, "Health"),
      panel("Checks", { id: "checks" }, h("ul", { class: "checks" }, checks(data).map(checked))),
      panel("This store", { id: "store" }, h("dl", { class: "facts" }, facts)),
      hidden ? hiddenFields(hidden) : null,
      audit ? panel("Changes through this server", { id: "audit" }, log(audit)) : null,
    ];
  }

  return { load, view };
}

function checked([level, title, text, href]) {
  const [shape, word] = LEVELS[level];
  return h(
    "li",
    { key: title, class: `is-${level}` },
    icon(shape, word),
    h("p", null, h("strong", null, title), h("span", { class: "by" }, ` ${text}`)),
    href ? h("a", { href }, "Look") : null,
  );
}

function hiddenFields({ phrases, shown_as: shownAs }) {
  return panel(
    "Hidden fields",
    { id: "hidden" },
    h("p", { class: "hint" }, `Fields with these words in their names are shown as ${shownAs}:`),
    h("p", { class: "phrases" }, phrases.map((phrase) => h("code", { key: phrase }, phrase))),
  );
}

/** [level, title, text, address] of each, the worst first. */
function checks(data) {
  const order = Object.keys(LEVELS);
  const found = [answering(data), active(data.workers, data.all), ...silent(data.workers), ...late(data)];
  found.push(...paused(data.queues), dead(data));
  return found.sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
}

function answering({ health, took }) {
  if (health.status === "ok") return ["good", "The store answers", `in ${span(took)}`];
  return ["bad", "The store does not answer", "jobs are neither taken nor put in; look at the server's log"];
}

function active(workers, { waiting }) {
  const alive = workers.filter((one) => one.alive);
  const slots = alive.reduce((sum, one) => sum + one.slots, 0);
  if (alive.length) {
    const title = plural(alive.length, "worker is active", "workers are active");
    return ["good", title, plural(slots, "slot"), to("workers")];
  }
  if (!waiting) return ["warn", "No worker is active", "nothing waits either", to("workers")];
  const words = `and ${plural(waiting, "job waits", "jobs wait")}: millrace worker --app module:app`;
  return ["bad", "No worker is active", words, to("workers")];
}

function silent(workers) {
  const holding = workers.filter((one) => !one.alive && one.running.length);
  if (!holding.length) return [];
  const title = `${plural(holding.length, "worker")} went silent with jobs in hand`;
  return [["warn", title, holding.slice(0, 3).map((one) => one.id).join(", "), to("workers")]];
}

function late({ queues, all }) {
  const found = queues.filter((one) => !one.paused && one.oldest_ready > LATE).slice(0, SHOWN);
  const oldest = (age) => `oldest due job waits for ${seconds(age)}`;
  const words = (one) => `its ${oldest(one.oldest_ready)}, ${plural(one.ready, "job is", "jobs are")} due`;
  if (found.length) {
    return found.map((one) => ["warn", `Queue ${one.queue} is late`, words(one), to("queues", [one.queue])]);
  }
  const calm = all.oldest_ready === null ? "nothing is due" : `the ${oldest(all.oldest_ready)}`;
  return [["good", "No queue is late", calm, to("queues")]];
}

function paused(queues) {
  const words = (one) => `${plural(one.ready, "due job waits", "due jobs wait")} in it`;
  return queues
    .filter((one) => one.paused)
    .map((one) => ["warn", `Queue ${one.queue} is paused`, words(one), to("queues", [one.queue])]);
}

function dead({ queues, all }) {
  const where = queues.filter((one) => one.dead).slice(0, SHOWN);
  if (!where.length) return ["good", "No job is dead", ""];
  return ["warn", plural(all.dead, "dead job"), `in ${where.map((one) => one.queue).join(", ")}`, to("dead")];
}

function log(entries) {
  if (!entries.length) return empty("Nothing was changed through this server since it started", "");
  const names = ["When", "Who", "What", "Of"].map((name) => ({ name }));
  const columns = [...names, { name: "Answer", class: "number" }];
  return table(columns, entries.map(logged), { label: "Changes" });
}

function logged(entry, n) {
  return h(
    "tr",
    { key: `${entry.at} ${n}` },
    cell("When", { class: "head" }, h("time", { datetime: entry.at, title: entry.at }, clock(entry.at))),
    cell("Who", null, entry.who, h("span", { class: "by" }, ` ${entry.client}`)),
    cell("What", null, entry.action),
    cell("Of", { class: "facts-text" }, JSON.stringify(entry.facts)),
    cell("Answer", { class: "number" }, entry.status),
  );
}
