// A screen that could not look at everything says so, and offers to go on.

import { h } from "../core/dom.js";

export function part(text, further = null) {
  return h(
    "p",
    { class: "part", key: "part", role: "status" },
    h("span", null, text),
    further ? h("button", { onclick: further }, "Look further") : null,
  );
}

/** Where the driver bounds how far it looks, one step further. */
export function widen(app) {
  const { driver } = app;
  return driver.further ? () => {
    driver.further();
    app.refresh();
  } : null;
}
