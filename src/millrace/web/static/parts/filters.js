// The filters of the list of jobs: states as tabs with their counts, a search, and the rest in fields. All of them only
// change the address.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count } from "../core/text.js";
import { icon } from "./icons.js";
import { since } from "./since.js";

const STATES = ["ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled", "archived"];
const FIELDS = [
  ["task", "Task", "send_mail"],
  ["group", "Group", ""],
  ["key", "Key", ""],
  ["tag", "Tag", ""],
  ["since", "Enqueued since", "15m, 2d or 2026-01-31"],
  ["until", "Enqueued until", "15m, 2d or 2026-01-31"],
  ["error", "Error", "a fingerprint, from Dead letters"],
];
export const NARROWING = ["task", "group", "key", "tag", "since", "until", "finished_from", "finished_to", "error", "shard"];
const SEARCHED = new Set(["status", "queue", ...NARROWING]);

export function filters(app, query, queues) {
  const set = (changes) => app.filter({ cursor: "", id: "", ...changes });
  return h("div", { class: "filters", key: "filters" }, tabs(query, queues), fields(app, query, queues, set));
}

/** Whether there are filters besides state and queue, for which counts exist. */
export function isNarrowed(query) {
  return [...NARROWING, "id"].some((name) => query[name]);
}

function tabs(query, queues) {
  const mine = queues.filter((one) => !query.queue || one.queue === query.queue);
  const total = (name) => mine.reduce((sum, one) => sum + one[name], 0);
  const tab = (status, label) =>
    h("li", { key: label },
      h(
        "a",
        {
          href: to("jobs", [], { ...query, status, cursor: "", id: "" }),
          "aria-current": (query.status ?? "") === status ? "true" : null,
          class: status ? `is-${status}` : "",
        },
        status ? icon(status) : null,
        label,
        status && !isNarrowed(query) ? h("span", { class: "count" }, count(total(status))) : null,
      ),
    );
  return h("ul", { class: "tabs", "aria-label": "State" }, tab("", "all"), STATES.map((name) => tab(name, name)));
}

function fields(app, query, queues, set) {
  const more = FIELDS.some(([name]) => query[name]) || query.order;
  return h("div", { class: "fields" },
    h(
      "form",
      {
        key: location.hash, // typed text is dropped when the list changes
        class: "search",
        role: "search",
        onsubmit: (event) => {
          event.preventDefault();
          const text = event.currentTarget.elements.search.value;
          set(understood(text));
        },
      },
      h(
        "input",
        {
          name: "search",
          type: "search",
          "data-search": true,
          "aria-label": "Search jobs",
          placeholder: "A whole id, or task:… queue:…  ( / )",
          value: query.id ?? "",
          spellcheck: "false",
        },
      ),
    ),
    h("label", { class: "inline" },
      h("span", null, "Queue"),
      h("select", { value: query.queue ?? "", onchange: (event) => set({ queue: event.target.value }) },
        h("option", { key: "all", value: "" }, "all"),
        known(queues, query.queue).map((name) => h("option", { key: `q ${name}`, value: name }, name)),
      ),
    ),
    app.can("ended") ? since("Ended", query.finished_from, (value) => set({ finished_from: value })) : null,
    app.driver.shards ? shard(app, query, set) : null,
    h("details", { class: "more", open: Boolean(more) },
      h("summary", null, "More filters"),
      h("div", { class: "grid" }, FIELDS.map((field) => fieldOf(field, query, set)), order(query, set)),
    ),
  );
}

function known(queues, chosen) {
  const names = queues.map((one) => one.queue);
  return chosen && !names.includes(chosen) ? [...names, chosen] : names;
}

function shard(app, query, set) {
  return h("label", { class: "inline" },
    h("span", null, "Shard"),
    h(
      "select",
      { value: query.shard ?? "", "data-shard": true, onchange: (event) => set({ shard: event.target.value }) },
      h("option", { key: "all", value: "" }, "all"),
      app.driver.shards.map((name) => h("option", { key: `s ${name}`, value: name }, name)),
    ),
  );
}

function fieldOf([name, label, hint], query, set) {
  return h("label", { key: name, class: "field" },
    h("span", null, label),
    h(
      "input",
      {
        name,
        value: query[name] ?? "",
        placeholder: hint,
        spellcheck: "false",
        onchange: (event) => set({ [name]: event.target.value.trim() }),
      },
    ),
  );
}

function order(query, set) {
  return h("label", { key: "order", class: "field" },
    h("span", null, "Order"),
    h("select", { value: query.order ?? "", onchange: (event) => set({ order: event.target.value }) },
      h("option", { key: "n", value: "" }, "newest first"),
      h("option", { key: "o", value: "oldest" }, "oldest first"),
      h("option", { key: "c", value: "changed" }, "last changed first"),
    ),
  );
}

/** `task:send queue:mail` are filters; a word without a name is an id. */
export function understood(text) {
  const found = {};
  const ids = [];
  for (const part of text.trim().split(/\s+/).filter(Boolean)) {
    const at = part.indexOf(":");
    const name = part.slice(0, at);
    if (at > 0 && SEARCHED.has(name)) found[name] = part.slice(at + 1);
    else ids.push(part);
  }
  return Object.keys(found).length ? found : { id: ids.join(",") };
}
