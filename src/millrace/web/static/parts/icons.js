// Icons. Each state has its own shape, so that nothing depends on colour alone.

import { h } from "../core/dom.js";

const SHAPES = {
  ready: ["M8 3.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6z", "fill"],
  running: ["M4.5 2.8v10.4l8.7-5.2z", "fill"],
  scheduled: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11zM8 5v3.2l2.2 1.4"],
  retrying: ["M13 8a5 5 0 1 1-1.6-3.7M13.2 2.2v2.9h-2.9"],
  blocked: ["M3.5 7.2h9v6h-9zM5.5 7V5.2a2.5 2.5 0 0 1 5 0V7"],
  completed: ["M2.8 8.6l3.4 3.4l7-7.6"],
  dead: ["M3.6 3.6l8.8 8.8M12.4 3.6l-8.8 8.8"],
  cancelled: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11zM4.2 11.8l7.6-7.6"],
  waiting: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z"],
  archived: ["M2.5 3h11v3h-11zM3.5 6v7h9V6M6.5 9h3"],
  paused: ["M5.5 3v10M10.5 3v10"],
  alive: ["M8 4a4 4 0 1 0 0 8a4 4 0 1 0 0-8z", "fill"],
  stale: ["M8 2.2l6.3 11.2H1.7zM8 6.5v3.2M8 11.6v.3"],
  copy: ["M5.5 5.5h7.5v8h-7.5zM3 10.5v-8h7.5"],
  menu: ["M2.5 4.5h11M2.5 8h11M2.5 11.5h11"],
  close: ["M4 4l8 8M12 4l-8 8"],
  sun: [
    "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6zM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  ],
  moon: ["M12.8 9.8A5.4 5.4 0 0 1 6.2 3.2a5.4 5.4 0 1 0 6.6 6.6z"],
  auto: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11zM8.6 3v10M10.1 3.6v8.8M11.6 4.6v6.8M12.8 6v4"],
  next: ["M6 3l5 5l-5 5"],
  enqueued: ["M8 3v10M3 8h10"],
  claimed: ["M4.5 2.8v10.4l8.7-5.2z", "fill"],
  unblocked: ["M3.5 7.2h9v6h-9zM5.5 7V5.2a2.5 2.5 0 0 1 4.6-1.3"],
  snoozed: ["M5 3h6l-6 7h6"],
  released: ["M13 8H3M7 4L3 8l4 4"],
  reclaimed: ["M3 4.5v4h4M3.4 8.4a5 5 0 1 1 1.8 4"],
  replayed: ["M3 4.5v4h4M3.4 8.4a5 5 0 1 1 1.8 4"],
  retried: ["M13 8a5 5 0 1 1-1.6-3.7M13.2 2.2v2.9h-2.9"],
  buried: ["M3.6 3.6l8.8 8.8M12.4 3.6l-8.8 8.8"],
  unarchived: ["M2.5 3h11v3h-11zM3.5 6v7h9V6M8 12V8M6.3 9.5L8 7.8l1.7 1.7"],
  evicted: ["M3 4.5h10M5 4.5l.6 9h4.8l.6-9M6.5 2.5h3"],
  pruned: ["M3 4.5h10M5 4.5l.6 9h4.8l.6-9M6.5 2.5h3"],
};

export function icon(name, label) {
  const [path, fill] = SHAPES[name] ?? SHAPES.waiting;
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return h("svg", { class: `icon${fill ? " filled" : ""}`, viewBox: "0 0 16 16", ...named }, h("path", { d: path }));
}

/** A state with its colour, its shape and its name. */
export function state(name, archived = false) {
  return h("span", { class: `state is-${name}` },
    icon(name),
    h("span", null, name),
    archived ? h("span", { class: "and" }, "archived") : null,
  );
}
