// How a job stands right now, in one sentence, with the countdown that matters: its lease, or when it is due.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { instant, seconds, span, whole } from "../core/text.js";
import { since, when } from "./bits.js";

export function standing(app, job) {
  return h(
    "section",
    { class: `standing is-${job.state}`, key: "standing", "aria-label": "State" },
    h("p", null, sentence(app, job)),
    job.state === "running" ? lease(app, job) : null,
  );
}

function sentence(app, job) {
  const at = (iso) => when(iso, app.now);
  const tries = job.max_attempts === null ? `attempt ${job.attempt}` : `attempt ${job.attempt} of ${job.max_attempts}`;
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
        job.next_retry_at ? ["; comes back by itself ", at(job.next_retry_at)] : "",
      ];
    default:
      return [`Was ${job.state} `, at(job.finished_at)];
  }
}

/** What becomes of it when one that it waits for does not complete. */
function rule({ on_dependency: kind, blocked_by: parents }) {
  const one = parents === 1 ? "If that one" : "If one of them";
  switch (kind) {
    case "run":
      return `${one} is dead or cancelled, that counts as an end too.`;
    case "wait":
      return `${one} is dead or cancelled, this one goes on waiting, until that is replayed and completes.`;
    default:
      return `${one} is dead or cancelled, this one is dead with it.`;
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
      ? `The lease holds for another ${whole(left())}`
      : `The lease ended ${whole(-left())} ago: another worker may take the job over`
  );
  const length = (job.lease ?? 30) * 1000;
  return h("div", { class: "lease" },
    h(
      "progress",
      { max: length, value: Math.max(0, Math.min(length, left())), "aria-label": "What is left of the lease" },
    ),
    h("span", { tick: text }));
}
