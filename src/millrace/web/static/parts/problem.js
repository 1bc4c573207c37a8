// What went wrong, with the message of the refusal, and a button to try again.

import { h } from "../core/dom.js";

export function problem(error, again) {
  const unforeseen = !error.detail;
  return h("div", { class: "problem", role: "alert", key: "problem" },
    h("div", null,
      h("strong", null, error.title ?? "Error in this page"),
      h("p", null, unforeseen ? String(error) : error.detail),
    ),
    again ? h("button", { onclick: again }, "Try again") : null,
  );
}
