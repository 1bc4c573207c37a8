// A screen that could not read everything says so, and offers to continue.

import { h } from "../core/dom.js";

export function incomplete(text, further = null) {
  return h("p", { class: "part", key: "part", role: "status" },
    h("span", null, text),
    further ? h("button", { onclick: further }, "Search further") : null,
  );
}

/** If the driver limits how much it reads, read one step more. */
export function widen(app) {
  const { driver } = app;
  return driver.further ? () => {
    driver.further();
    app.refresh();
  } : null;
}
