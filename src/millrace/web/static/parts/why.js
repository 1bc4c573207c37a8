// Why a job does not run: the reasons, the strongest first, each with what would help.

import { h } from "../core/dom.js";
import { queuePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { count, plural } from "../core/text.js";
import { command, jobLink, panel, since, when } from "./elements.js";
import { state } from "./icons.js";

const PARENTS = 8;

export function why(app, job, reasons, parents) {
  return panel(
    "Why is it not running?",
    { id: "why" },
    h("ol", { class: "reasons" },
      reasons.map((reason, n) => h("li", { key: reason.code, class: n === 0 ? "first" : "" },
        h("p", null, sentence(reason.text)),
        help(app, job, reason),
        reason.code === "blocked" ? awaited(app, job, parents) : null,
      )),
    ),
  );
}

/** The state of each job that it waits for; completed ones do not block it. */
function awaited(app, job, parents) {
  const open = parents.filter((one) => one.state !== "completed");
  const shown = open.slice(0, PARENTS);
  const rest = job.blocked_by - shown.length; // only the first parents were fetched
  return h("ul", { class: "parents" },
    shown.map((one) =>
      h("li", { key: one.id }, state(one.state), jobLink(one.id), h("span", { class: "by" }, standing(app, one)))),
    rest > 0 ? h("li", { key: "more", class: "hint" }, `and ${count(rest)} more`) : null,
  );
}

function standing(app, one) {
  switch (one.state) {
    case "scheduled":
    case "retrying":
      return ["due ", when(one.available_at, app.now)];
    case "ready":
      return one.why;
    case "running":
      return ["for ", since(one.started_at, app.now)];
    case "blocked":
      return `waits for ${plural(one.blocked_by, "job")} itself`;
    case "dead":
    case "cancelled":
      return when(one.finished_at, app.now);
    default:
      return one.task;
  }
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function help(app, job, { code, command: line }) {
  const parts = [];
  if (code === "queue_paused" && app.can("pause")) {
    parts.push(
      h(
        "button",
        {
          key: "resume",
          class: "main",
          onclick: () => app.act("POST", queuePath(job.queue, "/resume"), {}, `Queue ${job.queue} is resumed`),
        },
        `Resume queue ${job.queue}`,
      ),
    );
  }
  if (code === "lane_paused" && app.can("pause")) {
    parts.push(
      h(
        "button",
        {
          key: "lane",
          class: "main",
          onclick: () => app.act(
            "POST",
            queuePath(job.queue, "/resume"),
            { lane: job.lane },
            `Lane ${job.lane} is resumed`,
          ),
        },
        `Resume lane ${job.lane}`,
      ),
    );
  }
  if (code.startsWith("queue_limit") || code === "queue_rate") parts.push(
    h("a", { key: "limits", href: to("queues", [job.queue]) }, `Limits of queue ${job.queue}`),
  );
  if (
    code === "slots_busy" || code === "no_worker" || code === "queue_unserved" || code === "task_unknown"
  ) parts.push(h("a", { key: "workers", href: to("workers") }, "Workers"));
  if (code === "line_busy" && job.group) parts.push(
    h("a", { key: "group", href: to("jobs", [], { group: job.group, queue: job.queue }) },
      `Jobs of group ${job.group}`,
    ),
  );
  if (code === "line_busy" && job.lane !== null) parts.push(
    h("a", { key: "pool", href: to("pools") }, "Lanes of the pool"),
  );
  if (line) parts.push(command(line));
  return parts.length ? h("div", { class: "help" }, parts) : null;
}
