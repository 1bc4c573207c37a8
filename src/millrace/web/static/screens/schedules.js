// Schedules: what runs when, and when it last did.

import { h } from "../core/dom.js";
import { schedulePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { sure } from "../parts/dialogs.js";
import { badge, cell, empty, queueLink, table, when } from "../parts/elements.js";

export function makeSchedules(app) {
  const load = (signal) => app.request("GET", "/api/schedules", { signal });

  function view({ schedules }) {
    const columns = [
      { name: "Schedule" },
      { name: "When" },
      { name: "Task" },
      { name: "Queue" },
      { name: "Next", class: "number" },
      { name: "Last", class: "number" },
      { name: "If missed" },
      { name: "" },
    ];
    return [
      h("h1", { key: "title" }, "Schedules"),
      schedules.length ? table(columns, schedules.map(row), { label: "Schedules" }) : empty(
        "There are no schedules",
        "In code: @app.cron(\"0 6 * * *\"). A scheduler declares them when it starts.",
      ),
    ];
  }

  function row(one) {
    return h("tr", { key: one.name, "data-row": true },
      cell("Schedule", { class: "head" }, h("strong", null, one.name), one.paused ? badge("paused", "warn") : null),
      cell("When", null, h("code", null, one.expression), h("span", { class: "by" }, ` ${one.tz}`)),
      cell("Task", null, h("a", { href: to("jobs", [], { task: one.task }) }, one.task)),
      cell("Queue", null, queueLink(one.queue)),
      cell(
        "Next",
        { class: "number" },
        one.paused ? h("span", { class: "none" }, "paused") : when(one.next_tick, app.now),
      ),
      cell("Last", { class: "number" }, when(one.last_tick, app.now)),
      cell("If missed", null, one.missed),
      h("td", { class: "actions" },
        app.can("schedules:act") ? h(
          "button",
          {
            class: one.paused ? "main" : "",
            "data-first": true,
            "aria-label": `${one.paused ? "Resume" : "Pause"} ${one.name}`,
            onclick: () => app.act(
              "POST",
              schedulePath(one.name, one.paused ? "/resume" : "/pause"),
              undefined,
              one.paused ? `${one.name} resumes now` : `${one.name} is paused`,
            ),
          },
          one.paused ? "Resume" : "Pause",
        ) : null,
        app.can("schedules:forget") ? h(
          "button",
          { class: "plain", "aria-label": `Forget ${one.name}`, onclick: () => forget(one) },
          "Forget …",
        ) : null),
    );
  }

  async function forget(one) {
    const agreed = await sure({
      title: `Forget schedule ${one.name}?`,
      details: "It enqueues no more jobs. A scheduler whose app still declares it creates it again when it starts.",
      submit: "Forget it",
      danger: true,
    });
    if (agreed) app.act("DELETE", schedulePath(one.name), undefined, `${one.name} is forgotten`);
  }

  return { load, view };
}
