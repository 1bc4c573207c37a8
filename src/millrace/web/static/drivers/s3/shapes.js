// Jobs, events and the rest in the shapes of the HTTP API: instants in ISO 8601, durations in seconds.

import { parse } from "../../core/json.js";
import { withoutExpiredResult, wordOf } from "./record.js";
import { HIDDEN, Secrets } from "./secrets.js";

export const seconds = (duration) => (duration === null || duration === undefined ? null : duration / 1_000);

export function when(at) {
  if (at === null || at === undefined) return null;
  const moment = new Date(at);
  return Number.isNaN(moment.getTime()) ? String(at) : moment.toISOString();
}

/** The data behind a payload or result, HIDDEN when it cannot be read: then nobody can tell what is in it. */
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
  if (job.data?.input && job.payload === null) return new Secrets(null); // it lies elsewhere, and was not read
  const payload = decoded(job.payload);
  return new Secrets(payload === HIDDEN ? null : rule.secrets(payload, job.spec.headers ?? {}));
}

/** What a list shows of a job. */
export function listed(job, now, rule) {
  const spec = job.spec;
  return {
    id: job.id,
    task: job.task,
    queue: job.queue,
    state: wordOf(job, now),
    priority: spec.priority,
    group: spec.group,
    key: spec.key,
    lane: job.lane,
    seq: job.seq,
    generation: job.generation,
    attempt: job.attempt,
    failures: job.failures,
    max_attempts: spec.max_attempts,
    archived: job.archived,
    enqueued_at: when(job.enqueued_at),
    available_at: when(job.available_at),
    started_at: when(job.started_at),
    finished_at: when(job.finished_at),
    worker: job.worker,
    lease_until: when(job.lease_until),
    timeout: seconds(spec.timeout),
    blocked_by: job.blocked,
    reason: job.reason,
    error: secretsOf(job, rule).failure(job.error),
  };
}

/** Everything that is known of a job. */
export function shown(given, now, rule) {
  const job = withoutExpiredResult(given, now);
  const spec = job.spec;
  const hidden = secretsOf(job, rule);
  return {
    ...listed(job, now, rule),
    payload: rule.plain(decoded(job.payload)),
    result: hidden.within(rule.plain(decoded(job.result))),
    has_result: job.result !== null || "output" in (job.data ?? {}),
    result_expired: job.result_expired,
    progress: hidden.within(rule.plain(decoded(job.progress))),
    serde: spec.serde,
    headers: rule.plain(spec.headers ?? {}),
    after: spec.after,
    on_dependency: spec.on_dependency,
    stalls: job.stalls,
    snoozes: job.snoozes,
    releases: job.releases,
    replays: job.replays,
    cancel_requested: job.cancel_requested,
    expires_at: when(job.expires_at),
    next_retry_at: when(job.next_retry_at),
    lease: seconds(spec.lease),
    attempts: job.attempts.map((one) => ({
      attempt: one.attempt,
      at: when(one.at),
      duration: seconds(one.duration),
      worker: one.worker ?? null,
      error: hidden.failure(one.error),
    })),
    rev: job.rev,
    missing: job.missing ?? [],
  };
}

/** `event` is as the record holds it, its seq as digits. */
export function eventShown(event, hidden) {
  return {
    job: event.job,
    seq: event.seq,
    generation: event.generation,
    n: event.n,
    kind: event.kind,
    at: when(event.at),
    queue: event.queue,
    task: event.task,
    state: event.state,
    attempt: event.attempt ?? 0,
    failures: event.failures ?? 0,
    worker: event.worker ?? null,
    lease: event.lease ?? null,
    delay: seconds(event.delay),
    duration: seconds(event.duration),
    reason: event.reason ?? null,
    error: hidden.failure(event.error),
  };
}

const SETTINGS = {
  max_running: null,
  rate: null,
  burst: null,
  paused: false,
  paused_lanes: [],
  lanes: null,
  max_depth: null,
  fair_share: 0,
  on_empty: null,
  keep_completed: 86_400_000,
  keep_dead: 7 * 86_400_000,
  dead_cap: 10_000,
  dead_overflow: "evict",
  auto_retries: 0,
  auto_retry_delay: 3_600_000,
};
const IN_MILLISECONDS = ["keep_completed", "keep_dead", "auto_retry_delay"];

export const settingsOf = (queue) => ({ ...SETTINGS, ...queue.settings });

export function settingsShown(settings) {
  return { ...settings, ...Object.fromEntries(IN_MILLISECONDS.map((name) => [name, seconds(settings[name])])) };
}

export function workerShown(record, now, running) {
  const { info, started_at, last_beat, ttl } = record;
  return {
    id: info.id,
    alive: last_beat + ttl >= now,
    host: info.host ?? "",
    pid: info.pid ?? 0,
    version: info.version ?? "",
    queues: info.queues ?? [],
    tasks: info.tasks ?? [],
    slots: info.slots ?? 1,
    shards: info.shards ?? [],
    running,
    completed: info.completed ?? 0,
    failed: info.failed ?? 0,
    started_at: when(started_at),
    last_beat: when(last_beat),
    ttl: seconds(ttl),
  };
}

export function scheduleShown(plan) {
  const { name, expression, tz, task, queue, missed, digest } = plan;
  return {
    ...{ name, expression, tz, task, queue, missed, digest },
    grace: seconds(plan.grace),
    mark: when(plan.mark),
    rev: plan.rev ?? 0,
    last_tick: when(plan.last_tick),
    next_tick: when(plan.next_tick),
    paused: plan.paused ?? false,
  };
}
