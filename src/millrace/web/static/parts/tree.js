// JSON as a tree that opens branch by branch. Only open branches are drawn, a page at a time, so that a payload of a
// megabyte costs no more than its visible part.

import { h } from "../core/dom.js";
import { Exact } from "../core/json.js";
import { count, plural } from "../core/text.js";

const PAGE = 100;
const LONG = 400;
const SHORT = 80; // characters of a branch's preview
const OPEN_BELOW = 12; // a branch with fewer entries is open at first, down to the second level

/** The open branches of one tree; its owner keeps this between renderings. */
export class Opened {
  #chosen = new Map();
  #shown = new Map();

  constructor(redraw) {
    this.redraw = redraw;
  }

  is(path, usual) {
    return this.#chosen.get(path) ?? usual;
  }

  set(path, open) {
    if (this.#chosen.get(path) === open) return;
    this.#chosen.set(path, open);
    this.redraw();
  }

  shown(path, usual) {
    return this.#shown.get(path) ?? usual;
  }

  more(path, number) {
    this.#shown.set(path, number);
    this.redraw();
  }
}

export function tree(value, opened) {
  return h("div", { class: "tree" }, branch(null, value, "$", 0, opened));
}

function isBranch(value) {
  return value !== null && typeof value === "object" && !(value instanceof Exact);
}

function branch(name, value, path, depth, opened) {
  const label = name === null ? null : [h("span", { class: "name" }, name), h("span", { class: "sign" }, ": ")];
  if (!isBranch(value)) {
    return h("div", { class: "leaf", key: path }, label, leaf(value, path, opened));
  }
  const list = Array.isArray(value);
  const names = list ? null : Object.keys(value);
  const size = list ? value.length : names.length;
  if (size === 0) return h("div", { class: "leaf", key: path },
    label,
    h("span", { class: "sign" }, list ? "[]" : "{}"),
  );
  const open = opened.is(path, depth < 2 && size < OPEN_BELOW);
  const words = list ? plural(size, "item") : plural(size, "field");
  return h("details", { key: path, open, ontoggle: (event) => opened.set(path, event.currentTarget.open) },
    h("summary", null, label, h("span", { class: "sign" }, list ? "[…] " : "{…} "), h("span", { class: "size" }, words),
      open ? null : h("span", { class: "preview" }, preview(value))),
    open ? entries(value, names, size, path, depth, opened) : null,
  );
}

function entries(value, names, size, path, depth, opened) {
  const shown = Math.min(size, opened.shown(path, PAGE));
  const found = [];
  for (let at = 0; at < shown; at += 1) {
    const name = names === null ? String(at) : names[at];
    found.push(branch(name, value[name], `${path}/${at}`, depth + 1, opened));
  }
  const rest = size - shown;
  const more = () => opened.more(path, shown + PAGE * 5);
  return h("div", { class: "entries" },
    found,
    rest > 0 ? h("button", { key: "more", class: "link", onclick: more }, `${count(rest)} more`) : null,
  );
}

function leaf(value, path, opened) {
  if (typeof value !== "string") return h(
    "span",
    { class: `value is-${value === null ? "null" : value instanceof Exact ? "number" : typeof value}` },
    String(value),
  );
  if (value === "[redacted]") return h("span", { class: "value is-hidden", title: "hidden by the rule of redaction" },
    value,
  );
  const shown = opened.shown(path, LONG);
  const cut = value.length > shown;
  const text = cut ? value.slice(0, shown) : value;
  return [
    h("span", { class: "value is-string" }, `"${text}${cut ? "…" : '"'}`),
    cut
      ? h("button", { class: "link", onclick: () => opened.more(path, shown * 20) },
        `${count(value.length - shown)} more characters`,
      )
      : null,
  ];
}

function preview(value) {
  const parts = [];
  let length = 0;
  for (const name of Object.keys(value).slice(0, 8)) {
    const inner = value[name];
    const text = isBranch(inner) ? (
      Array.isArray(inner) ? "[…]" : "{…}"
    ) : JSON.stringify(inner)?.slice(0, 40);
    const part = Array.isArray(value) ? text : `${name}: ${text}`;
    length += part.length;
    if (length > SHORT) return `${parts.join(", ")}, …`;
    parts.push(part);
  }
  return parts.join(", ");
}
