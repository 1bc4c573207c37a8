// One job: its state, why it does not run, its payload and result, and its history.

import { h } from "../core/dom.js";
import { flowPath, jobPath } from "../core/paths.js";
import { to } from "../core/route.js";
import { plural } from "../core/text.js";
import { reason } from "../core/labels.js";
import { Problem } from "../drivers/problem.js";
import { sure } from "../parts/dialogs.js";
import { badge, copyable, empty, panel, queueLink } from "../parts/elements.js";
import { attempts } from "../parts/attempts.js";
import { log } from "../parts/log.js";
import { consequences } from "../parts/consequences.js";
import { Differences } from "../parts/diff.js";
import { facts } from "../parts/facts.js";
import { Dependencies } from "../parts/dependencies.js";
import { state } from "../parts/icons.js";
import { SameCause } from "../parts/same_cause.js";
import { stateSummary } from "../parts/state_summary.js";
import { timeline } from "../parts/timeline.js";
import { Opened, tree } from "../parts/tree.js";
import { why } from "../parts/why.js";

const WAITING = new Set(["ready", "scheduled", "retrying", "blocked"]);
const FINISHED = new Set(["completed", "dead", "cancelled"]);
const PAGES = 20; // of a history: ten thousand steps

export function makeJob(app, route) {
  const id = route.rest[0];
  const redraw = () => app.draw();
  const opened = {
    payload: new Opened(redraw),
    result: new Opened(redraw),
    progress: new Opened(redraw),
    headers: new Opened(redraw),
  };
  const differences = new Differences(app, id);
  const dependencies = new Dependencies(app);
  const sameCause = new SameCause(app);

  async function load(signal) {
    const ask = (path) => app.request("GET", path, { signal });
    const found = [ask(jobPath(id)), wholeHistory(signal)];
    const [job, history] = await Promise.all(found.map((one) => one.catch(goneIsNull)));
    if (!job && !history) throw new Problem({
      title: "Not found",
      status: 404,
      code: "not_found",
      detail: `there is no job ${id}, and no history of one`,
    });
    const waits = job && WAITING.has(job.state) && app.can("why");
    const flowed = job && job.flow !== null && app.can("flows");
    const [reasons, flow] = await Promise.all([
      waits ? ask(jobPath(id, "/why")).then((got) => got.reasons) : [],
      flowed ? ask(flowPath(job.flow)).catch(goneIsNull) : null,
      job ? dependencies.load(job, signal) : null,
      differences.load(history?.steps ?? [], signal),
    ]);
    if (job) sameCause.look(job);
    return { job, steps: history?.steps ?? [], reasons, flow };
  }

  /** All pages of it: the timeline shows its end. */
  async function wholeHistory(signal) {
    const steps = [];
    for (let cursor, page = 0; page < PAGES; page += 1) {
      const got = await app.request("GET", jobPath(id, "/history"), { query: { cursor }, signal });
      steps.push(...got.steps);
      cursor = got.cursor;
      if (!cursor) break;
    }
    return { steps };
  }

  function view({ job, steps, reasons, flow }) {
    if (!job) return [title(null), gone(), story(steps)];
    return [
      title(job),
      h("div", { class: "job", key: "job" },
        stateSummary(app, job),
        WAITING.has(job.state) && app.can("why") ? why(app, job, reasons, dependencies.parents) : null,
        job.error || job.reason ? failure(job, sameCause) : null,
        attempts(app, job),
        log(app, job),
        h("div", { class: "columns", key: "data" },
          value("Payload", job.payload, opened.payload),
          job.has_result || job.state === "completed" ? result(job) : null,
        ),
        job.progress === null ? null : value("Progress", job.progress, opened.progress),
        Object.keys(job.headers).length ? value("Headers", job.headers, opened.headers) : null,
        story(steps),
        dependencies.view(job),
        facts(app, job, flow),
      ),
    ];
  }

  function title(job) {
    return h("div", { class: "title", key: "title" },
      h("div", null,
        h("p", { class: "crumbs" },
          h("a", { href: to("jobs") }, "Jobs"),
          job ? [
            " / ",
            queueLink(job.queue),
            " / ",
            h("a", { href: to("jobs", [], { task: job.task }) }, job.task),
          ] : null,
        ),
        h("h1", null, h("span", { class: "id" }, id), copyable(id, "Copy the id"))),
      job ? h("div", { class: "head-state" },
        state(job.state, job.archived),
        job.cancel_requested ? badge("stop requested", "warn") : null,
      ) : null,
      job ? actions(job) : null,
    );
  }

  /** Asks first, and says what it does; `question` is {verb, title, submit, danger}. */
  async function agreed(job, { verb, title, submit, danger = false }) {
    return sure({ title, details: await consequences(app, verb, { queues: [job.queue] }), submit, danger });
  }

  function actions(job) {
    const act = (verb, said, body) => app.act("POST", jobPath(id, `/${verb}`), body, said);
    const asking = (question, action) => async () => (await agreed(job, question)) && action();
    const buttons = [];
    if (FINISHED.has(job.state) && app.can("replay")) {
      const question = { verb: "replay", title: `Replay ${id}?`, submit: "Replay it" };
      const action = () => act("replay", "It waits to run again");
      buttons.push(["Replay …", asking(question, action), job.state === "dead" ? "main" : ""]);
    }
    if (WAITING.has(job.state) && app.can("cancel")) {
      const question = { verb: "cancel", title: `Cancel ${id}?`, submit: "Cancel the job", danger: true };
      buttons.push(["Cancel …", asking(question, () => act("cancel", "Cancelled")), "danger"]);
    }
    if (job.state === "running" && app.can("cancel")) {
      const question = { verb: "request", title: `Stop this run of ${id}?`, submit: "Stop this run", danger: true };
      const action = () => act("cancel", "A stop was requested", { running: "request" });
      buttons.push(["Stop this run …", asking(question, action), "danger"]);
    }
    if (FINISHED.has(job.state) && app.can("archive")) {
      buttons.push(
        job.archived ? ["Unarchive", () => act("unarchive", "It is shown in lists again"), ""] : [
          "Archive",
          () => act("archive", "Archived: it is hidden from lists"),
          "",
          "Hide it from lists until it is unarchived; nothing is deleted",
        ],
      );
    }
    if (FINISHED.has(job.state) && app.can("delete")) {
      const question = { verb: "delete", title: `Delete ${id}?`, submit: "Delete it", danger: true };
      buttons.push(["Delete …", asking(question, () => act("delete", "Deleted")), "danger"]);
    }
    return h("div", { class: "actions" },
      buttons.map(([label, onclick, kind, title]) => h("button", { key: label, class: kind, onclick, title }, label)),
    );
  }

  function story(steps) {
    const aside = h("span", { class: "actions" },
      h("span", { class: "hint" }, plural(steps.length, "event")),
      differences.button(),
    );
    return panel("Timeline", { id: "timeline", aside },
      h("div", { class: "columns" }, timeline(app, steps, differences), differences.view(steps)));
  }

  function value(name, content, kept) {
    return panel(
      name,
      {
        id: name.toLowerCase(),
        aside: copyable(JSON.stringify(content, null, 2), `Copy the ${name.toLowerCase()} as JSON`),
      },
      tree(content, kept),
    );
  }

  function result(job) {
    if (job.has_result) return value("Result", job.result, opened.result);
    return panel(
      "Result",
      { id: "result" },
      job.result_expired ? empty(
        "No longer kept",
        "Its retention has passed.",
      ) : empty("None", "The handler returned no value."),
    );
  }

  return { load, view, title: () => id };
}

function goneIsNull(error) {
  if (error.status === 404) return null;
  throw error;
}

function gone() {
  return panel(
    "Removed",
    { id: "gone" },
    empty("The job itself is no longer kept", "Retention removed it, or it was replaced. Its history is:"),
  );
}

function failure(job, sameCause) {
  const dead = job.state === "dead";
  const { type, message } = job.error ?? {};
  return panel(dead ? "Why it is dead" : "Its last error", { id: "error", aside: dead ? sameCause.view(job) : null },
    type ? h("p", { class: "error-text" }, h("strong", null, type), message ? `: ${message}` : "") : null,
    dead && job.reason ? h("p", { class: "hint" }, `It is dead because ${reason(job.reason)}.`) : null);
}
