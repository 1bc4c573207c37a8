// Small building blocks of all screens.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { clock, instant, whole } from "../core/text.js";
import { icon } from "./icons.js";
import { note } from "./notes.js";

/** How long ago, or in how long; the exact time is in its title. */
export function when(iso, now) {
  if (!iso) return h("span", { class: "none" }, "–");
  const at = instant(iso);
  const text = () => {
    const away = now() - at;
    if (Math.abs(away) < 1000) return "now";
    return away < 0 ? `in ${whole(-away)}` : `${whole(away)} ago`;
  };
  return h("time", { datetime: iso, title: `${clock(iso)} (${iso})`, tick: text });
}

/** How long something has lasted so far. */
export function since(iso, now) {
  if (!iso) return h("span", { class: "none" }, "–");
  const at = instant(iso);
  return h("time", { datetime: iso, title: `since ${clock(iso)}`, tick: () => whole(Math.max(0, now() - at)) });
}

export function jobLink(id, text = id) {
  return h("a", { class: "id", href: to("jobs", [id]), title: id }, text);
}

export function queueLink(name) {
  return h("a", { href: to("queues", [name]) }, name);
}

export function copyable(text, label = "Copy") {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      note("Copied");
    } catch {
      note("The browser does not let this page use the clipboard: mark the text and copy it", "wrong");
    }
  };
  return h("button", { class: "bare", title: label, "aria-label": label, onclick: copy }, icon("copy"));
}

export function command(text) {
  return h("span", { class: "command" }, h("code", null, text), copyable(text, "Copy the command"));
}

export function panel(title, { id, aside = null, wide = false } = {}, ...children) {
  return h("section", { key: id ?? title, id, class: `panel${wide ? " wide" : ""}`, "aria-label": title },
    h("header", null, h("h2", null, title), aside),
    children,
  );
}

export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "what" }, title), text ? h("p", null, text) : null, more);
}

/** A table that scrolls if it is too wide. Columns: [{name, class, title}]. */
export function table(columns, rows, { label, head = null } = {}) {
  return h("div", { class: "scroll" },
    h("table", { "aria-label": label },
      h("thead", null,
        head ?? h("tr", null,
          columns.map((one) => h("th", { class: one.class, scope: "col", title: one.title }, one.name)),
        ),
      ),
      h("tbody", null, rows),
    ),
  );
}

/** A cell; on a phone, where rows become cards, `name` is shown before it. */
export function cell(name, props, ...children) {
  return h("td", { "data-name": name, ...props }, children);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function bar(part, whole, kind = "") {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" },
    h("span", { style: { width: `${(share * 100).toFixed(1)}%` } }),
  );
}
