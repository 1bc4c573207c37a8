// What changed between two steps of a job's history, on request. Until two are marked, it is the change of the last
// step.

import { h } from "../core/dom.js";
import { clock } from "../core/text.js";
import { jobPath } from "../core/paths.js";
import { reason, step as wordOf } from "../core/labels.js";
import { place } from "./timeline.js";

const WORDS = { due_at: "due", started_at: "started", finished_at: "finished", kept: "record kept" };

export class Differences {
  #app;
  #id;
  #chosen = {}; // from, to: as the user marked them
  #asked = "";
  #answer = null;
  open = false;

  constructor(app, id) {
    this.#app = app;
    this.#id = id;
  }

  async load(steps, signal) {
    const names = steps.map((step) => place(step.event));
    this.to = names.includes(this.#chosen.to) ? this.#chosen.to : names.at(-1);
    this.from = names.includes(this.#chosen.from) ? this.#chosen.from : names.at(-2);
    this.possible = Boolean(this.from) && this.#app.can("diff");
    if (!this.possible || !this.open) return;
    const asked = `${this.from} ${this.to} ${names.length}`;
    if (asked === this.#asked) return; // the history of a step does not change
    const query = { from: this.from, to: this.to };
    this.#answer = await this.#app.request("GET", jobPath(this.#id, "/history/diff"), { query, signal });
    this.#asked = asked;
  }

  /** Start or stop comparing. */
  toggle() {
    this.open = !this.open;
    this.#app.draw();
    this.#app.refresh();
  }

  button() {
    if (!this.possible) return null;
    return h("button", { class: "plain", "aria-pressed": String(this.open), onclick: () => this.toggle() },
      this.open ? "Stop comparing" : "Compare events",
    );
  }

  choose(end, name) {
    this.#chosen = { from: this.from, to: this.to, [end]: name };
    this.#app.refresh();
  }

  view(steps) {
    if (!this.open || !this.#answer || steps.length < 2) return null;
    const { from, to, changes } = this.#answer;
    return h("div", { class: "diff", key: "diff", "aria-live": "polite" },
      h("h3", null, "Changed from ", name(from), " to ", name(to)),
      changes.length
        ? h("table", { "aria-label": "What changed" },
            h("thead", null,
              h("tr", null, ["", "before", "after"].map((word, n) => h("th", { key: n, scope: "col" }, word))),
            ),
            h("tbody", null,
              changes.map((one) => h("tr", { key: one.fact },
                h("th", { scope: "row" }, WORDS[one.fact] ?? one.fact),
                h("td", { class: "before" }, shown(one.fact, one.before)),
                h("td", { class: "after" }, shown(one.fact, one.after)),
              )),
            ),
          )
        : h("p", { class: "hint" }, "No recorded field changed."),
      h("p", { class: "hint" }, "Select two events to compare."),
    );
  }
}

function name(event) {
  return h("span", { class: `step is-${event.state}` }, `event ${event.n} (${wordOf(event.kind)})`);
}

function shown(fact, value) {
  if (value === null || value === undefined) return h("span", { class: "none" }, "none");
  if (fact.endsWith("_at")) return h("time", { datetime: value, title: value }, clock(value));
  if (fact === "reason") return reason(value);
  if (fact === "error") return `${value.type}: ${value.message}`;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
