// Dead letters by cause: what most of them died of comes first. A cause can be looked into, and all its jobs brought
// back.

import { h } from "../core/dom.js";
import { jobPath } from "../core/paths.js";
import { to } from "../core/route.js";
import { count, errorText, plural } from "../core/text.js";
import { bar, empty, jobLink, queueLink, when } from "../parts/bits.js";
import { deed, forMatching } from "../parts/bulk.js";
import { Opened, tree } from "../parts/tree.js";

const LIMIT = 100;
const RARELY = 10_000; // causes are gathered by reading every dead job, so not at each refresh
const FILTERS = ["queue", "task", "since"];
const MEANING = "What fails too often, expires or loses what it depends on ends up here.";

export function makeDead(app) {
  const opened = new Map(); // fingerprint → {job, tree} of the sample that is shown
  let last = { key: null, at: 0, dead: 0, data: null };

  async function load(signal, { query }) {
    const asked = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
    const { queues } = await app.request("GET", "/api/queues", { signal });
    const key = JSON.stringify(asked);
    const sum = queues.reduce((total, one) => total + one.dead, 0);
    const age = Date.now() - last.at;
    const grew = sum > last.dead && age > RARELY;
    if (last.key !== key || sum < last.dead || grew || age > RARELY * 6) {
      const causes = await app.request("GET", "/api/dead", { query: { ...asked, limit: LIMIT }, signal });
      last = { key, at: Date.now(), dead: sum, data: causes };
    }
    return { queues, asked, ...last.data };
  }

  function view({ queues, asked, total, complete, causes }) {
    const lead = `${complete ? "" : "More than "}${plural(total, "dead job")} of ${plural(causes.length, "cause")}`;
    return [
      h(
        "div",
        { class: "title", key: "title" },
        h("div", null, h("h1", null, "Dead letters")),
        total ? h("p", { class: "lead" }, lead) : null,
      ),
      filters(queues, asked),
      causes.length
        ? h("ol", { class: "causes", key: "causes" }, causes.map((cause) => one(cause, causes[0].count, asked)))
        : empty("No job is dead", Object.keys(asked).length ? "None that fits the filters." : MEANING),
    ];
  }

  function filters(queues, asked) {
    const shown = queues.filter((one) => one.dead || one.queue === asked.queue);
    const set = (name) => (event) => app.filter({ [name]: event.target.value.trim() });
    const field = (name, label, hint) =>
      h(
        "label",
        { class: "inline" },
        h("span", null, label),
        h("input", { value: asked[name] ?? "", spellcheck: "false", placeholder: hint, onchange: set(name) }),
      );
    return h(
      "div",
      { class: "fields", key: "filters" },
      h(
        "label",
        { class: "inline" },
        h("span", null, "Queue"),
        h(
          "select",
          { value: asked.queue ?? "", onchange: set("queue") },
          h("option", { key: "all", value: "" }, "all"),
          shown.map((one) =>
            h("option", { key: `q ${one.queue}`, value: one.queue }, `${one.queue} (${count(one.dead)})`),
          ),
        ),
      ),
      field("task", "Task", "any"),
      field("since", "Enqueued since", "15m, 2d …"),
    );
  }

  function one(cause, most, asked) {
    const filter = { status: "dead", error: cause.fingerprint, ...asked };
    const words = `dead of “${cause.error}”`;
    const act = (verb) => () => forMatching(app, deed(verb), filter, `that are ${words}`);
    const sample = opened.get(cause.fingerprint);
    return h(
      "li",
      { key: cause.fingerprint, "data-row": true },
      h("div", { class: "how-many" }, h("strong", null, count(cause.count)), bar(cause.count, most, "dead")),
      h(
        "div",
        { class: "of" },
        h("p", { class: "error-text" }, cause.error || (cause.reason ?? "no error").replaceAll("_", " ")),
        h("p", { class: "by" }, whereAndWhen(cause)),
        sample ? sampled(cause, sample) : null,
      ),
      h(
        "div",
        { class: "actions" },
        app.can("replay") && app.can("bulk")
          ? h("button", { class: "main", "data-first": true, onclick: act("replay") }, `Replay ${count(cause.count)} …`)
          : null,
        app.can("archive") && app.can("bulk") ? h("button", { onclick: act("archive") }, "Archive …") : null,
        h(
          "button",
          { class: "plain", "aria-expanded": String(Boolean(sample)), onclick: () => look(cause) },
          sample ? "Hide sample" : "Sample",
        ),
        h("a", { class: "button plain", href: to("jobs", [], filter) }, "Jobs"),
      ),
    );
  }

  function whereAndWhen(cause) {
    const queues = Object.entries(cause.queues);
    const each = (number) => (queues.length > 1 ? ` ${count(number)}` : "");
    return [
      "task ",
      h("a", { href: to("jobs", [], { status: "dead", task: cause.task }) }, cause.task),
      " · ",
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

  function sampled(cause, { job, kept, wrong }) {
    if (wrong) return h("p", { class: "hint" }, wrong);
    if (!job) return h("p", { class: "hint" }, "Loading …");
    return h("div", { class: "sampled" },
      h("p", null, "The one that died last: ", jobLink(job.id)),
      h("h3", null, "Payload"), tree(job.payload, kept),
      h("h3", null, errorText(job.error) ? "Traceback" : "Reason"),
      h(
        "pre",
        { tabindex: "0" },
        job.error?.traceback || errorText(job.error) || (job.reason ?? "").replaceAll("_", " "),
      ));
  }

  return { load, view };
}
