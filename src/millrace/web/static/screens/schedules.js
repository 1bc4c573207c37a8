// Schedules: what runs when, and when it last did.

import { h } from "../core/dom.js";
import { schedulePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { sure } from "../parts/dialogs.js";
import { badge, cell, empty, queueLink, table, when } from "../parts/elements.js";

const PAGE = 100;

export function makeSchedules(app) {
  const load = (signal, { query }) => app.request("GET", "/api/schedules", {
    query: query.after ? { after: query.after, limit: PAGE } : { limit: PAGE },
    signal,
  });

  function view({ schedules, next }, { query }) {
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
        "In code: @app.cron(\"0 6 * * *\"). At run time: await app.schedules.put(…).",
      ),
      query.after || next ? pager(next, query) : null,
    ];
  }

  function pager(next, query) {
    return h("div", { class: "pager", key: "pager" },
      query.after ? h("button", { class: "plain", onclick: () => history.back() }, "Back") : null,
      query.after ? h("a", { class: "button plain", href: to("schedules") }, "First page") : null,
      next ? h("a", { class: "button", href: to("schedules", [], { after: next }), "data-next": true }, "Next") : null,
    );
  }

  function row(one) {
    return h("tr", { key: one.name, "data-row": true },
      cell("Schedule", { class: "head" }, h("strong", null, one.name), one.paused ? badge("paused", "warn") : null,
        one.source === "code" ? h("span", { class: "by" }, " in code") : null),
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
        app.can("schedules:remove") ? h(
          "button",
          { class: "plain", "aria-label": `Remove ${one.name}`, onclick: () => remove(one) },
          "Remove …",
        ) : null),
    );
  }

  async function remove(one) {
    const agreed = await sure({
      title: `Remove schedule ${one.name}?`,
      details: one.source === "code"
        ? "It enqueues no more jobs. A worker whose app declares it in code stores it again when it starts."
        : "It enqueues no more jobs. Jobs that are already enqueued still run.",
      submit: "Remove it",
      danger: true,
    });
    if (agreed) app.act("DELETE", schedulePath(one.name), undefined, `${one.name} is removed`);
  }

  return { load, view };
}
