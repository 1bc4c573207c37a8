// The current state of a job in one sentence, with the relevant countdown: its lease, or when it is due.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { instant, seconds, span, whole } from "../core/text.js";
import { since, when } from "./elements.js";

export function stateSummary(app, job) {
  return h("section", { class: `standing is-${job.state}`, key: "standing", "aria-label": "State" },
    h("p", null, sentence(app, job)),
    job.state === "running" ? lease(app, job) : null,
  );
}

function sentence(app, job) {
  const at = (iso) => when(iso, app.now);
  const failed = job.max_attempts === null ? job.failures : `${job.failures} of at most ${job.max_attempts}`;
  const tries = job.failures ? `attempt ${job.attempt}, failures: ${failed}` : `attempt ${job.attempt}`;
  switch (job.state) {
    case "running":
      return [
        "Runs for ",
        since(job.started_at, app.now),
        ` (${tries}) on `,
        worker(job.worker),
        job.timeout ? `; it is stopped after ${seconds(job.timeout)}` : "",
      ];
    case "ready":
      return ["Waits for a worker, due ", at(job.available_at)];
    case "scheduled":
      return ["Is due ", at(job.available_at)];
    case "retrying":
      return [
        `Failed ${job.failures === 1 ? "once" : `${job.failures} times`}, and is tried again `,
        at(job.available_at),
      ];
    case "blocked":
      return [
        `Waits for ${job.blocked_by === 1 ? "another job" : `${job.blocked_by} other jobs`} to complete. `,
        rule(job),
      ];
    case "completed":
      return ["Completed ", at(job.finished_at), ran(job)];
    case "dead":
      return [
        "Dead for ",
        since(job.finished_at, app.now),
        `, after ${job.attempt === 1 ? "one attempt" : `${job.attempt} attempts`}`,
        job.next_retry_at ? ["; is retried automatically ", at(job.next_retry_at)] : "",
      ];
    default:
      return [`Was ${job.state} `, at(job.finished_at)];
  }
}

/** What happens to it if a job that it depends on does not complete. */
function rule({ on_dependency: kind, blocked_by: parents }) {
  const one = parents === 1 ? "If that one" : "If one of them";
  switch (kind) {
    case "run":
      return `${one} is dead or cancelled, this job runs anyway.`;
    case "wait":
      return `${one} is dead or cancelled, this job keeps waiting until that job is replayed and completes.`;
    default:
      return `${one} is dead or cancelled, this job becomes dead as well.`;
  }
}

function ran(job) {
  const took = instant(job.finished_at) - instant(job.started_at);
  return Number.isNaN(took) ? "" : `, after a run of ${span(took)} in attempt ${job.attempt}`;
}

function worker(name) {
  return name ? h("a", { href: to("workers", [], { worker: name }) }, name) : "a worker";
}

function lease(app, job) {
  const ends = instant(job.lease_until);
  if (Number.isNaN(ends)) return null;
  const left = () => ends - app.now();
  const text = () => (
    left() > 0
      ? `The lease expires in ${whole(left())}`
      : `The lease expired ${whole(-left())} ago; another worker can reclaim the job`
  );
  const length = (job.lease ?? 30) * 1000;
  return h("div", { class: "lease" },
    h(
      "progress",
      { max: length, value: Math.max(0, Math.min(length, left())), "aria-label": "Remaining lease" },
    ),
    h("span", { tick: text }));
}
