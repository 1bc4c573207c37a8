// The log of a job: the lines that its handler wrote with ctx.log, in all attempts.

import { h } from "../core/dom.js";
import { plural } from "../core/text.js";
import { panel, when } from "./elements.js";

const LEVELS = { WARNING: "warn", ERROR: "error", CRITICAL: "error" };

export function log(app, job) {
  const lines = job.log ?? [];
  if (!lines.length) return null;
  const count = lines.reduce((sum, line) => sum + (line.dropped || 1), 0);
  return panel(
    "Log",
    { id: "log", aside: h("span", { class: "hint" }, plural(count, "line")) },
    h("ol", { class: "log" }, lines.map((line, n) => row(app, line, n))),
  );
}

function row(app, line, n) {
  const fields = Object.entries(line.fields).map(([name, value]) => ` ${name}=${JSON.stringify(value)}`).join("");
  return h("li", { key: `${n} ${line.attempt} ${line.at}`, class: LEVELS[line.level] ?? "" },
    h("span", { class: "by" }, `attempt ${line.attempt} · `, when(line.at, app.now), line.dropped ? "" : ` · ${line.level}`),
    h("pre", null, line.text + fields),
  );
}
