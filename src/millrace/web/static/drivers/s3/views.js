// Jobs, events and the rest in the shapes of the HTTP API: instants in ISO 8601, durations in seconds.

import { parse } from "../../core/json.js";
import { withoutExpiredResult, wordOf } from "./record.js";
import { HIDDEN, Secrets } from "./secrets.js";
import * as tables from "./tables.js";

const LISTED_PARENTS = 20; // a job may have thousands

export const seconds = (duration) => (duration === null || duration === undefined ? null : duration / 1_000);

export function when(at) {
  if (at === null || at === undefined) return null;
  const moment = new Date(at);
  return Number.isNaN(moment.getTime()) ? String(at) : moment.toISOString();
}

/** The data behind a payload or result, HIDDEN when it cannot be decoded, because it may contain secrets. */
export function decoded(part) {
  if (part === null || part === undefined) return null;
  if (part.text === undefined) return HIDDEN;
  try {
    return parse(part.text);
  } catch {
    return HIDDEN;
  }
}

/** What the errors of a job must not quote. */
export function secretsOf(job, rule) {
  if (rule.phrases.length === 0) return new Secrets([]);
  if (job.data?.input && job.payload === null) return new Secrets(null); // it is in a separate object that was not read
  const payload = decoded(job.payload);
  return new Secrets(payload === HIDDEN ? null : rule.secrets(payload, job.spec.headers ?? {}));
}

/** The fields of a view (tables.js), from an object that has them as they are stored. */
function viewed(view, stored) {
  const shownAs = { instant: when, seconds, value: (value) => value ?? null };
  return Object.fromEntries(Object.entries(view).map(([name, kind]) => [name, shownAs[kind](stored[name])]));
}

/** What a list shows of a job. */
export function listed(job, now, rule) {
  return {
    ...viewed(tables.JOB_SUMMARY, { ...job.spec, ...job }),
    state: wordOf(job, now),
    after: job.spec.after.slice(0, LISTED_PARENTS),
    blocked_by: job.blocked,
    error: secretsOf(job, rule).failure(job.error),
  };
}

/** All data of a job. */
export function shown(given, now, rule) {
  const job = withoutExpiredResult(given, now);
  const hidden = secretsOf(job, rule);
  return {
    ...listed(job, now, rule),
    ...viewed(tables.JOB_DETAILS, { ...job.spec, ...job }),
    after: job.spec.after,
    payload: rule.plain(decoded(job.payload)),
    result: hidden.within(rule.plain(decoded(job.result))),
    has_result: job.result !== null || "output" in (job.data ?? {}),
    progress: hidden.within(rule.plain(decoded(job.progress))),
    headers: rule.plain(job.spec.headers ?? {}),
    flow: job.spec.headers?.["millrace-flow"] ?? null,
    enqueued_by: job.spec.headers?.["millrace-enqueued-by"] ?? null,
    continued_by: job.carried ?? [],
    attempts: job.attempts.map((one) => ({
      attempt: one.attempt,
      at: when(one.at),
      duration: seconds(one.duration),
      worker: one.worker ?? null,
      error: hidden.failure(one.error),
    })),
    log: (decoded(job.log) ?? []).map((line) => ({
      attempt: line.attempt,
      at: when(line.at),
      level: line.level,
      text: hidden.within(rule.plain(line.text)),
      fields: hidden.within(rule.plain(line.fields ?? {})),
      dropped: line.dropped ?? 0,
    })),
    rev: job.rev,
    missing: job.missing ?? [],
  };
}

/** `event` is as the record holds it, its seq as digits. */
export function eventShown(event, hidden) {
  return { ...viewed(tables.EVENT_VIEW, { ...tables.EVENT, ...event }), error: hidden.failure(event.error) };
}

export const settingsOf = (queue) => ({ ...tables.SETTINGS, ...queue.settings });

export const settingsShown = (settings) => viewed(tables.SETTINGS_VIEW, settings);

export function workerShown({ info, ...record }, now, running) {
  return viewed(tables.WORKER_VIEW, { ...tables.WORKER, ...info, ...record, alive: record.last_beat + record.ttl >= now, running });
}

export const scheduleShown = (plan) => viewed(tables.SCHEDULE_VIEW, {
  ...tables.SCHEDULE,
  ...plan,
  source: plan.template ? "store" : "code",
});
