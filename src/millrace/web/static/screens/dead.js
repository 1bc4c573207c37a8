// Dead letters by cause, the most frequent first. A cause can be inspected, and all its jobs replayed.

import { h } from "../core/dom.js";
import { jobPath } from "../core/paths.js";
import { to } from "../core/route.js";
import { instantOf } from "../core/since.js";
import { count, errorText, plural } from "../core/text.js";
import { reason } from "../core/labels.js";
import { bar, empty, jobLink, queueLink, when } from "../parts/elements.js";
import { action, forMatching } from "../parts/bulk.js";
import { incomplete, widen } from "../parts/incomplete.js";
import { since } from "../parts/since.js";
import { Opened, tree } from "../parts/tree.js";

const SHOWN = 100;
const LIMIT = 500;
const LOOKS = 25; // requests, each limited in time, until the user is asked whether to continue
const RARELY = 10_000; // milliseconds; causes are computed from every dead job, so not at each refresh
const SHARE = 10; // at most this fraction (1/n) of the time is spent on that
const FILTERS = ["queue", "task", "since", "finished_from"];
const MEANING = "A job that fails too often, expires, or depends on a job that failed ends up here.";

export function makeDead(app) {
  const opened = new Map(); // fingerprint → {job, tree} of the newest job that is shown
  let looks = LOOKS;
  let last = { key: null, at: 0, took: 0, dead: 0, data: null };

  async function load(signal, { query }) {
    const asked = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
    const { queues } = await app.request("GET", "/api/queues", { signal });
    const key = JSON.stringify(asked);
    const sum = queues.reduce((total, one) => total + one.dead, 0);
    const age = Date.now() - last.at;
    const rarely = Math.max(RARELY, last.took * SHARE);
    const grew = sum > last.dead && age > rarely;
    if (last.key !== key || sum < last.dead || grew || age > rarely * 6) {
      const began = Date.now();
      const first = await app.request("GET", "/api/dead", { query: { ...meant(asked), limit: LIMIT }, signal });
      last = { key, at: Date.now(), took: Date.now() - began, dead: sum, data: together([first]) };
      goOn(last, meant(asked), [first]);
    }
    return { queues, asked, ...last.data };
  }

  /** Read what the first, short request did not reach, while its result is already shown. */
  async function goOn(mine, asked, parts) {
    try {
      while (mine === last && parts.at(-1).cursor && parts.length < looks && !document.hidden) {
        const { cursor } = parts.at(-1);
        const began = Date.now();
        parts.push(await app.request("GET", "/api/dead", { query: { ...asked, limit: LIMIT, cursor } }));
        Object.assign(mine, { at: Date.now(), took: mine.took + Date.now() - began, data: together(parts) });
        if (mine === last && app.shown?.causes) {
          Object.assign(app.shown, mine.data);
          app.draw();
        }
      }
    } catch (error) {
      if (!error.detail) throw error; // a refusal: the result so far stays, and is marked as partial
    }
  }

  function further() {
    looks *= 10;
    last.key = null;
    widen(app)?.();
    app.refresh();
  }

  function view({ queues, asked, total, complete, causes }) {
    const lead = `${complete ? "" : "More than "}${plural(total, "dead job")} of ${plural(causes.length, "cause")}`;
    return [
      h("div", { class: "title", key: "title" },
        h("div", null, h("h1", null, "Dead letters")),
        total ? h("p", { class: "lead" }, lead) : null,
      ),
      filters(queues, asked),
      complete ? null : incomplete(
        `Not all dead jobs were examined: the newest ${count(total)} are counted.`,
        further,
      ),
      causes.length
        ? h("ol", { class: "causes", key: "causes" }, causes.map((cause) => one(cause, total, complete, asked)))
        : empty("No job is dead", Object.keys(asked).length ? "None that matches the filters." : MEANING),
    ];
  }

  function filters(queues, asked) {
    const shown = queues.filter((one) => one.dead || one.queue === asked.queue);
    const set = (name) => (event) => app.filter({ [name]: event.target.value.trim() });
    const field = (name, label, hint) =>
      h("label", { class: "inline" },
        h("span", null, label),
        h("input", { value: asked[name] ?? "", spellcheck: "false", placeholder: hint, onchange: set(name) }),
      );
    return h("div", { class: "fields", key: "filters" },
      h("label", { class: "inline" },
        h("span", null, "Queue"),
        h("select", { value: asked.queue ?? "", onchange: set("queue") },
          h("option", { key: "all", value: "" }, "all"),
          shown.map((one) =>
            h("option", { key: `q ${one.queue}`, value: one.queue }, `${one.queue} (${count(one.dead)})`),
          ),
        ),
      ),
      app.can("ended")
        ? since("Dead since", asked.finished_from, (value) => app.filter({ finished_from: value }))
        : null,
      field("task", "Task", "any"),
      field("since", "Enqueued since", "15m, 2d …"),
    );
  }

  function one(cause, total, complete, asked) {
    const filter = { status: "dead", error: cause.fingerprint, ...asked };
    const named = cause.error ? `“${cause.error.replaceAll("…", "‹…›")}”` : "the same cause";
    const words = `that died of ${named}`;
    const queues = Object.keys(cause.queues);
    const act = (verb) => () => forMatching(app, action(verb), meant(filter), { words, queues });
    const sample = opened.get(cause.fingerprint);
    const many = `${count(cause.count)}${complete ? "" : "+"}`; // all jobs are counted before an action
    return h("li", { key: cause.fingerprint, "data-row": true },
      h("div", { class: "how-many", title: `${many} of ${plural(total, "dead job")}` },
        h("strong", null, many),
        bar(cause.count, total, "dead"),
      ),
      h("div", { class: "of" },
        h("p", { class: "error-text" }, pattern(cause.error) ?? (reason(cause.reason) || "no error")),
        h("p", { class: "by" }, whereAndWhen(cause)),
        sample ? sampled(sample) : null,
      ),
      h("div", { class: "actions" },
        app.can("replay") && app.can("bulk")
          ? h("button", { class: "main", "data-first": true, onclick: act("replay") }, `Replay ${many} …`)
          : null,
        app.can("archive") && app.can("bulk") ? h("button", { onclick: act("archive") }, `Archive ${many} …`) : null,
        h("button", { class: "plain", "aria-expanded": String(Boolean(sample)), onclick: () => look(cause) },
          sample ? "Hide newest" : "Newest job",
        ),
        h("a", { class: "button plain", href: to("jobs", [], filter) },
          cause.count === 1 && complete ? "The job" : `All ${many} jobs`,
        ),
      ),
    );
  }

  function whereAndWhen(cause) {
    const queues = Object.entries(cause.queues);
    const each = (number) => (queues.length > 1 ? ` ${count(number)}` : "");
    return [
      "task ",
      h("a", { href: to("jobs", [], { status: "dead", task: cause.task }) }, cause.task),
      " · queue ",
      queues.map(([name, number], n) => [n ? ", " : "", queueLink(name), each(number)]),
      " · last ",
      when(cause.last_at, app.now),
      cause.first_at === cause.last_at ? null : [", first ", when(cause.first_at, app.now)],
    ];
  }

  async function look(cause) {
    if (opened.delete(cause.fingerprint)) return app.draw();
    const kept = new Opened(() => app.draw());
    opened.set(cause.fingerprint, { job: null, kept });
    app.draw();
    try {
      opened.set(cause.fingerprint, { job: await app.request("GET", jobPath(cause.example)), kept });
    } catch (error) {
      opened.set(cause.fingerprint, { job: null, kept, wrong: error.detail ?? String(error) });
    }
    app.draw();
  }

  /** The counts of queues include archived dead jobs, so they cannot be used here. */
  function changed() {
    last.key = null;
  }

  return { load, view, changed };
}

/** Merge the causes of several requests, each continuing where the one before ended. */
function together(answers) {
  const known = new Map();
  for (const cause of answers.flatMap((answer) => answer.causes)) {
    const one = known.get(cause.fingerprint);
    known.set(cause.fingerprint, one ? {
      ...(one.last_at > cause.last_at ? one : cause),
      count: one.count + cause.count,
      queues: sums(one.queues, cause.queues),
      first_at: one.first_at < cause.first_at ? one.first_at : cause.first_at,
    } : cause);
  }
  return {
    total: answers.reduce((sum, answer) => sum + answer.total, 0),
    complete: answers.at(-1).complete,
    causes: [...known.values()].sort((a, b) => b.count - a.count).slice(0, SHOWN),
  };
}

function sums(one, other) {
  const all = { ...one };
  for (const [name, number] of Object.entries(other)) all[name] = (all[name] ?? 0) + number;
  return all;
}

function meant(filter) {
  return filter.finished_from ? { ...filter, finished_from: instantOf(filter.finished_from) } : filter;
}

/** A cause with the varying parts marked, so that it does not look truncated. */
function pattern(text) {
  if (!text) return null;
  const varies = (n) => h("span", { key: n, class: "varies", title: "This part differs from job to job" }, "‹…›");
  return text.split("…").map((piece, n) => [n ? varies(n) : null, piece]);
}

function sampled({ job, kept, wrong }) {
  if (wrong) return h("p", { class: "hint" }, wrong);
  if (!job) return h("p", { class: "hint" }, "Loading …");
  return h("div", { class: "sampled" },
    h("p", null, "The newest: ", jobLink(job.id)),
    h("h3", null, "Payload"),
    tree(job.payload, kept),
    h("h3", null, errorText(job.error) ? "Traceback" : "Reason"),
    h("pre", { tabindex: "0" }, job.error?.traceback || errorText(job.error) || reason(job.reason)),
  );
}
