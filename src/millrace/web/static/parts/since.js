// A choice of a time that something ended after: some usual ones, or any.

import { h } from "../core/dom.js";
import { SINCE, sinceWords } from "../core/since.js";
import { ask } from "./dialogs.js";

const OTHER = "other";

export function since(label, value, set) {
  const known = !value || SINCE.some(([name]) => name === value);
  async function choose(event) {
    if (event.target.value !== OTHER) return set(event.target.value);
    event.target.value = value ?? "";
    const given = await ask({
      title: label,
      fields: [{ name: "at", label: "Date and time, in your time zone", type: "datetime-local", required: true }],
      submit: "Show",
      cancel: true,
    });
    if (given) set(new Date(given.at).toISOString());
  }
  return h("label", { class: "inline" },
    h("span", null, label),
    h("select", { value: value ?? "", "data-since": true, onchange: choose },
      h("option", { key: "any", value: "" }, "any time"),
      SINCE.map(([name, words]) => h("option", { key: name, value: name }, words)),
      known ? null : h("option", { key: `at ${value}`, value }, sinceWords(value)),
      h("option", { key: OTHER, value: OTHER }, "a time …"),
    ),
  );
}
