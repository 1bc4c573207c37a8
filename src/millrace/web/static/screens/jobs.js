// Jobs by the filters in the address, and actions for selected jobs or for all that match.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { instantOf } from "../core/since.js";
import { count, errorText, plural } from "../core/text.js";
import { reason } from "../core/labels.js";
import { badge, cell, empty, jobLink, queueLink, since, table, when } from "../parts/elements.js";
import { actions, forChosen, forMatching, scope } from "../parts/bulk.js";
import { NARROWING, filters, isNarrowed } from "../parts/filters.js";
import { state } from "../parts/icons.js";
import { incomplete, widen } from "../parts/incomplete.js";

const PAGE = 50;
const FILTERS = ["status", "queue", ...NARROWING];
const ORDERS = { oldest: "oldest", changed: "last changed" };

export function makeJobs(app) {
  const chosen = new Set();
  let seen = ""; // the filters at the time of the selection

  async function load(signal, { query }) {
    const asked = { ...matching(query), ...pick(query, ["cursor"]), limit: PAGE };
    if (query.id) asked.id = query.id.split(",");
    if (query.order === "oldest") asked.oldest = true;
    if (query.order === "changed") asked.sort = "changed";
    if (query.status === "archived") asked.all = true;
    const [page, queues] = await Promise.all([
      app.request("GET", "/api/jobs", { query: asked, signal }),
      app.request("GET", "/api/queues", { signal }),
    ]);
    return { page, queues: queues.queues };
  }

  function view({ page, queues }, { query }) {
    const under = JSON.stringify(pick(query, [...FILTERS, "id", "cursor"]));
    if (under !== seen) {
      seen = under;
      chosen.clear();
    }
    const { jobs } = page;
    return [
      h("h1", { key: "title" }, "Jobs"),
      filters(app, query, queues),
      app.can("bulk") ? choice(page, query, queues) : null,
      page.complete === false ? partly() : null,
      jobs.length ? list(jobs, query) : nothing(query, page),
      pager(page, query),
    ];
  }

  function choice(page, query, queues) {
    const { jobs } = page;
    const mine = jobs.filter((job) => chosen.has(job.id));
    const some = mine.length > 0;
    if (!jobs.length) return null;
    const can = actions(app, some ? mine : jobs, some ? null : query.status);
    const filtered = Object.keys(pick(query, FILTERS)).length > 0 && !query.id;
    return h(
      "div",
      { class: `choice${some ? " some" : ""}`, key: "choice", role: "group", "aria-label": "Actions for many jobs" },
      h("span", { class: "how-many", "aria-live": "polite" },
        some ? `${plural(mine.length, "job")} chosen` : filtered ? "Choose jobs, or:" : "Choose jobs, ",
      ),
      some
        ? can.map((action) => h(
          "button",
          { key: action.verb, onclick: () => forChosen(app, action, mine, () => chosen.clear()) },
          `${action.label} …`,
        ))
        : filtered
          ? can.map((action) => forAll(action, page, query, queues))
          : h("span", { class: "hint" }, "or set a filter to act on all that match it."),
    );
  }

  function forAll(action, { jobs, cursor, complete }, query, queues) {
    const whole = cursor === null && !query.cursor && complete !== false;
    const asked = { status: query.status, queue: query.queue, narrowed: isNarrowed(query) };
    const about = scope(action, asked, jobs, whole, queues);
    if (!about || about.number === 0) return null;
    const { word, number } = about;
    const act = () => forMatching(app, action, matching(query), { queues: query.queue ? [query.queue] : [] });
    const words = number === null ? `all ${word} jobs` : plural(number, `${word} job`);
    const match = number === 1 ? "matches" : "match";
    const kind = action.danger ? "plain danger" : "plain";
    return h("button", { key: action.verb, class: kind, onclick: act }, `${action.label} ${words} that ${match} …`);
  }

  function partly() {
    const words = "Not all finished jobs were examined: these are among the newest. With a queue, more are found.";
    return incomplete(words, widen(app));
  }

  function list(jobs, query) {
    const all = jobs.every((job) => chosen.has(job.id));
    const flip = (ids, on) => {
      for (const id of ids) on ? chosen.add(id) : chosen.delete(id);
      app.draw();
    };
    const columns = [
      "State",
      "Job",
      "Task",
      "Queue",
      "Failures",
      "Enqueued",
      "Details",
    ].map((name) => h(
      "th",
      { key: name, scope: "col", class: name === "Failures" || name === "Enqueued" ? "number" : "" },
      name,
    ));
    const boxes = app.can("bulk");
    const allBox = h(
      "input",
      {
        type: "checkbox",
        "aria-label": "Choose all on this page",
        checked: all,
        indeterminate: !all && chosen.size > 0,
        onchange: (event) => flip(jobs.map((job) => job.id), event.target.checked),
      },
    );
    const head = h("tr", null, boxes ? h("th", { class: "box", scope: "col" }, allBox) : null, columns);
    const rows = jobs.map((job) => row(job, boxes, flip));
    return h("div", { key: "list", class: "jobs" },
      table([], rows, { label: `Jobs, ${ORDERS[query.order] ?? "newest"} first`, head }),
    );
  }

  function row(job, boxes, flip) {
    const box = h(
      "input",
      {
        type: "checkbox",
        "aria-label": `Choose ${job.id}`,
        checked: chosen.has(job.id),
        onchange: (event) => flip([job.id], event.target.checked),
      },
    );
    const failures = job.max_attempts === null ? count(job.failures) : `${job.failures}/${job.max_attempts}`;
    return h("tr", { key: `${job.id} ${job.seq}`, "data-row": true, class: chosen.has(job.id) ? "chosen" : "" },
      boxes ? h("td", { class: "box" }, box) : null,
      cell("State", { class: "head" }, state(job.state, job.archived)),
      cell("Job", { class: "ids" }, jobLink(job.id)),
      cell("Task", null, h("a", { href: to("jobs", [], { task: job.task }) }, job.task), (job.tags ?? []).map((tag) => badge(tag))),
      cell("Queue", null, queueLink(job.queue), job.lane === null ? null : badge(`lane ${job.lane}`)),
      cell("Failures", { class: "number", title: plural(job.attempt, "attempt") }, failures),
      cell("Enqueued", { class: "number" }, when(job.enqueued_at, app.now)),
      cell("Details", { class: "what" }, what(job)),
    );
  }

  function what(job) {
    if (job.state === "running") return [
      "for ",
      since(job.started_at, app.now),
      job.worker ? ` on ${job.worker}` : null,
    ];
    if (job.state === "scheduled" || job.state === "retrying") return [
      "due ",
      when(job.available_at, app.now),
      job.error ? h("span", { class: "error" }, ` ${errorText(job.error)}`) : null,
    ];
    if (job.state === "dead") return [
      when(job.finished_at, app.now),
      h("span", { class: "error" }, ` ${errorText(job.error) || reason(job.reason)}`),
    ];
    if (job.finished_at) return [`${job.state} `, when(job.finished_at, app.now)];
    if (job.state === "blocked") return `waits for ${plural(job.blocked_by, "job")}`;
    if (job.state === "ready") return ["due ", when(job.available_at, app.now)];
    return "";
  }

  function nothing(query, page) {
    const filtered = FILTERS.some((name) => query[name]) || query.id;
    const elsewhere = query.shard ? " Only one shard was examined." : "";
    if (page.cursor) return empty(
      "No match so far",
      `${count(page.scanned)} jobs were examined; there are more.`,
    );
    if (filtered) return empty(
      "No job matches",
      `Jobs that ended long ago may have been removed by retention; their history may still be in a lake (millrace pipeline).${elsewhere}`,
      h("p", null, h("a", { href: to("jobs") }, "Clear all filters")),
    );
    return empty("There are no jobs", "Enqueue a first one: millrace submit TASK '{\"a\": 1}'");
  }

  function pager({ jobs, cursor }, query) {
    const further = query.order === "oldest" ? "Newer" : "Older";
    return h("div", { class: "pager", key: "pager" },
      query.cursor ? h("button", { class: "plain", onclick: () => history.back() }, "Back") : null,
      query.cursor ? h("a", { class: "button plain", href: to("jobs", [], { ...query, cursor: "" }) },
        "First page",
      ) : null,
      h("span", { class: "hint" }, jobs.length ? plural(jobs.length, "job") : ""),
      cursor ? h("a", { class: "button", href: to("jobs", [], { ...query, cursor }), "data-next": true },
        jobs.length < PAGE ? "Search further" : further,
      ) : null,
    );
  }

  return { load, view, title: () => "Jobs" };
}

/** The filters as a request has them. */
function matching(query) {
  const picked = pick(query, FILTERS);
  return picked.finished_from ? { ...picked, finished_from: instantOf(picked.finished_from) } : picked;
}

function pick(query, names) {
  return Object.fromEntries(names.filter((name) => query[name]).map((name) => [name, query[name]]));
}

