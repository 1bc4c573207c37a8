// What happened to a job, step by step. Any two steps can be marked, to see what changed between them.

import { h } from "../core/dom.js";
import { clock, errorText, instant, seconds, span } from "../core/text.js";
import { more, reason, step as wordOf } from "../core/labels.js";
import { icon } from "./icons.js";

const MOST = 200;

export function timeline(app, steps, differences) {
  if (!steps.length) return h("p", { class: "hint", key: "timeline" }, "No history is kept.");
  const hidden = Math.max(0, steps.length - MOST);
  const shown = steps.slice(hidden);
  return h("ol", { class: "timeline", key: "timeline" },
    differences.open ? h("li", { key: "head", class: "head", "aria-hidden": "true" },
      h("span", { class: "ends" }, ["from", "to"].map((end) => h("span", { key: end }, end))),
    ) : null,
    hidden ? h("li", { key: "hidden", class: "hint" }, `${hidden} earlier events are not shown`) : null,
    shown.map((step, at) => row(step.event, shown[at - 1]?.event, differences)),
  );
}

function row(event, before, differences) {
  const name = place(event);
  const later = before ? instant(event.at) - instant(before.at) : null;
  const marks = ["from", "to"].map((end) =>
    h(
      "input",
      {
        key: end,
        type: "radio",
        name: end,
        checked: differences[end] === name,
        "aria-label": `${end === "from" ? "Compare from" : "Compare to"} event ${event.n}, ${wordOf(event.kind)}`,
        onchange: () => differences.choose(end, name),
      },
    ),
  );
  return h("li", { key: name, class: `is-${event.state} kind-${event.kind}` },
    h("span", { class: "spot" }, icon(event.kind)),
    h("div", { class: "happened" },
      h("p", null,
        h("strong", null, wordOf(event.kind)),
        event.worker ? h("span", { class: "by" }, ` · ${event.worker}`) : null,
        event.duration === null ? null : h("span", { class: "by" }, ` · ran ${seconds(event.duration)}`),
      ),
      event.error ? h("p", { class: "error" }, errorText(event.error)) : null,
      event.reason && !event.error ? h("p", { class: "by" }, reason(event.reason)) : null,
      more(event.kind) ? h("p", { class: "by" }, more(event.kind)) : null,
      event.delay ? h("p", { class: "by" }, `due ${seconds(event.delay)} later`) : null,
    ),
    h("time", { datetime: event.at, title: `${clock(event.at)} (${event.at})` },
      later === null ? clock(event.at) : `+${span(Math.max(0, later))}`,
    ),
    differences.open ? h("span", { class: "ends" }, marks) : null,
  );
}

export function place(event) {
  return `${event.generation}:${event.n}`;
}
