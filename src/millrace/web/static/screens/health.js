// Is everything well? What would worry an operator, in words, and what was changed through this server.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { clock, count, plural, seconds, span } from "../core/text.js";
import { cell, empty, panel, table } from "../parts/bits.js";
import { icon } from "../parts/icons.js";

const LATE = 60; // seconds after which a due job should have been taken
const AUDIT_SHOWN = 50;

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
    return [
      h("h1", { key: "title" }, "Health"),
      panel("Checks", { id: "checks" }, h("ul", { class: "checks" }, checks(data).map(([level, title, text, href]) =>
        h("li", { key: title, class: `is-${level}` }, icon({ good: "completed", warn: "stale", bad: "dead" }[level], { good: "well", warn: "look at this", bad: "wrong" }[level]), h("p", null, h("strong", null, title), h("span", { class: "by" }, ` ${text}`)), href ? h("a", { href }, "Look") : null)))),
      panel("This store", { id: "store" }, h("dl", { class: "facts" }, [["Store", data.all.store], ["Version", data.all.version], ["Answers in", span(data.took)], ["Queues", count(data.all.queues)], ["Ever completed", count(data.all.processed)], ["Ever dead", count(data.all.died)]].map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))))),
      data.hidden ? panel("Hidden fields", { id: "hidden" }, h("p", { class: "hint" }, `Fields with these words in their names are shown as ${data.hidden.shown_as}:`), h("p", { class: "phrases" }, data.hidden.phrases.map((phrase) => h("code", { key: phrase }, phrase)))) : null,
      data.audit ? panel("Changes through this server", { id: "audit" }, log(data.audit)) : null,
    ];
  }

  return { load, view };
}

function checks({ health, all, queues, workers, took }) {
  const found = [];
  const check = (level, title, text, href) => found.push([level, title, text, href]);
  if (health.status === "ok") check("good", "The store answers", `in ${span(took)}`);
  else check("bad", "The store does not answer", "jobs are neither taken nor put in; look at the server's log");
  const alive = workers.filter((one) => one.alive);
  const holding = workers.filter((one) => !one.alive && one.running.length);
  if (alive.length) check("good", plural(alive.length, "worker is active", "workers are active"), `${count(alive.reduce((sum, one) => sum + one.slots, 0))} slots`, to("workers"));
  else if (all.waiting) check("bad", "No worker is active", `and ${plural(all.waiting, "job waits", "jobs wait")}: millrace worker --app module:app`, to("workers"));
  else check("warn", "No worker is active", "nothing waits either", to("workers"));
  if (holding.length) check("warn", `${plural(holding.length, "worker")} went silent with jobs in hand`, holding.map((one) => one.id).slice(0, 3).join(", "), to("workers"));
  const late = queues.filter((one) => !one.paused && one.oldest_ready > LATE);
  if (late.length) for (const one of late.slice(0, 5)) check("warn", `Queue ${one.queue} is late`, `its oldest due job waits for ${seconds(one.oldest_ready)}, ${plural(one.ready, "job is", "jobs are")} due`, to("queues", [one.queue]));
  else check("good", "No queue is late", all.oldest_ready === null ? "nothing is due" : `the oldest due job waits for ${seconds(all.oldest_ready)}`, to("queues"));
  for (const one of queues.filter((queue) => queue.paused)) check("warn", `Queue ${one.queue} is paused`, `${plural(one.ready, "due job waits", "due jobs wait")} in it`, to("queues", [one.queue]));
  const dead = queues.filter((one) => one.dead);
  if (dead.length) check("warn", plural(all.dead, "dead job"), `in ${dead.slice(0, 5).map((one) => one.queue).join(", ")}`, to("dead"));
  else check("good", "No job is dead", "");
  return found.sort((a, b) => "bad warn good".split(" ").indexOf(a[0]) - "bad warn good".split(" ").indexOf(b[0]));
}

function log(entries) {
  if (!entries.length) return empty("Nothing was changed through this server since it started", "");
  const columns = [{ name: "When" }, { name: "Who" }, { name: "What" }, { name: "Of" }, { name: "Answer", class: "number" }];
  return table(columns, entries.map((entry, n) => h("tr", { key: `${entry.at} ${n}` },
    cell("When", { class: "head" }, h("time", { datetime: entry.at, title: entry.at }, clock(entry.at))),
    cell("Who", null, entry.who, h("span", { class: "by" }, ` ${entry.client}`)),
    cell("What", null, entry.action),
    cell("Of", { class: "facts-text" }, JSON.stringify(entry.facts)),
    cell("Answer", { class: "number" }, entry.status))), { label: "Changes" });
}
