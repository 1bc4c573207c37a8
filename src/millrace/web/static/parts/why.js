// Why a job does not run: the reasons, the strongest first, each with what would help.

import { h } from "../core/dom.js";
import { queuePath } from "../core/paths.js";
import { to } from "../core/route.js";
import { command, jobLink, panel } from "./bits.js";

export function why(app, job, reasons) {
  return panel(
    "Why is it not running?",
    { id: "why" },
    h(
      "ol",
      { class: "reasons" },
      reasons.map((reason, n) => h(
        "li",
        { key: reason.code, class: n === 0 ? "first" : "" },
        h("p", null, sentence(reason.text)),
        help(app, job, reason),
      )),
    ),
  );
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
          onclick: () => app.act("POST", queuePath(job.queue, "/resume"), {}, `Queue ${job.queue} goes on`),
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
            `Lane ${job.lane} goes on`,
          ),
        },
        `Resume lane ${job.lane}`,
      ),
    );
  }
  if (code === "blocked") parts.push(
    h("span", { key: "parents", class: "list" }, job.after.slice(0, 5).map((id) => jobLink(id))),
  );
  if (code.startsWith("queue_limit") || code === "queue_rate") parts.push(
    h("a", { key: "limits", href: to("queues", [job.queue]) }, `Limits of queue ${job.queue}`),
  );
  if (
    code === "slots_busy" || code === "no_worker" || code === "queue_unserved" || code === "task_unknown"
  ) parts.push(h("a", { key: "workers", href: to("workers") }, "Workers"));
  if (code === "line_busy" && job.group) parts.push(
    h(
      "a",
      { key: "group", href: to("jobs", [], { group: job.group, queue: job.queue }) },
      `Jobs of group ${job.group}`,
    ),
  );
  if (code === "line_busy" && job.lane !== null) parts.push(
    h("a", { key: "pool", href: to("pools") }, "Lanes of the pool"),
  );
  if (line) parts.push(command(line));
  return parts.length ? h("div", { class: "help" }, parts) : null;
}
