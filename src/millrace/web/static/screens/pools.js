// Pools and their lanes.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count } from "../core/text.js";
import { badge, empty } from "../parts/elements.js";
import { lanes } from "../parts/lanes.js";
import { pause } from "./queues.js";

export function makePools(app) {
  const load = (signal) => app.request("GET", "/api/pools", { signal });

  function view({ pools }) {
    return [
      h("h1", { key: "title" }, "Pools"),
      pools.length ? pools.map(one) : empty(
        "There are no pools",
        "A pool is a queue with lanes: jobs of one key run in order, one at a time. " +
          "In code: app.pool(\"mail\", lanes=8).",
      ),
    ];
  }

  function one(pool) {
    const numbers = [
      ["waiting", pool.waiting],
      ["running", pool.running],
      ["completed", pool.processed],
      ["dead", pool.dead],
    ];
    return h("section", { class: "panel", key: pool.pool, "aria-label": `Pool ${pool.pool}` },
      h("header", null,
        h("h2", null,
          h("a", { href: to("queues", [pool.pool]) }, pool.pool),
          pool.paused ? badge("paused", "warn") : badge(pool.state),
        ),
        h("p", { class: "inline-figures" },
          numbers.map(([name, number]) => h("span", { key: name }, h("strong", null, count(number)), ` ${name}`)),
          pool.max_depth === null ? null : h("span", null, `at most ${count(pool.max_depth)} waiting`),
        ),
        app.can("pause") ? pause(app, pool.pool, pool.paused) : null),
      lanes(app, pool.pool, pool.lanes),
    );
  }

  return { load, view };
}
