// What went wrong, in the words of whoever refused, and a way to try again.

import { h } from "../core/dom.js";

export function problem(error, again) {
  const unforeseen = !error.detail;
  return h(
    "div",
    { class: "problem", role: "alert", key: "problem" },
    h(
      "div",
      null,
      h("strong", null, error.title ?? "This page made a mistake"),
      h("p", null, unforeseen ? String(error) : error.detail),
    ),
    again ? h("button", { onclick: again }, "Try again") : null,
  );
}
