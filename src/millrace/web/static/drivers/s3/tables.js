// Fields, defaults and names, exported from the Python code: python -m tools.page_tables. Do not edit.
//
// A record leaves out fields that have their default. A view maps each of its fields to how it is shown.

export const SPEC = {
  queue: "default", serde: "json", token: "", priority: 0, delay: 0, expires: null, group: null, retry_blocks: true,
  key: null, scope: "live", window: 0, on_hit: "keep", reuse: true, rerun_expired: false, after: [],
  on_dependency: "bury", allow_missing: false, max_attempts: 4, max_stalls: 3, timeout: 300000, on_timeout: "retry",
  lease: 30000, keep_result: 3600000, on_dead_letter: null, hook: false, headers: null, origin: 0, tags: [],
};
export const JOB = {
  expires_at: null, started_at: null, finished_at: null, attempt: 0, failures: 0, stalls: 0, snoozes: 0, releases: 0,
  replays: 0, auto_retries: 0, events: 0, blocked: 0, lane: null, open: false, in_line: false, holds: false,
  worker: null, lease_id: null, lease_until: null, cancel_requested: false, archived: false, result: null,
  result_until: null, result_expired: false, error: null, reason: null, next_retry_at: null, attempts: [],
  progress: null, lost_worker: null, failed_parent: null, has_dependents: false, carried: null, log: null,
};
export const EVENT = {
  attempt: 0, failures: 0, worker: null, lease: null, delay: null, reason: null, error: null, duration: null,
};
export const WORKER = {
  queues: [], tasks: [], slots: 1, running: [], completed: 0, failed: 0, version: "", host: "", pid: 0, zombies: 0,
  shards: [],
};
export const SCHEDULE = {
  rev: 0, last_tick: null, next_tick: null, paused: false, template: null,
};
export const SETTINGS = {
  max_running: null, rate: null, burst: null, paused: false, paused_lanes: [], lanes: null, max_depth: null,
  fair_share: 0.0, on_empty: null, keep_completed: 86400000, keep_dead: 604800000, dead_cap: 10000,
  dead_overflow: "evict", auto_retries: 0, auto_retry_delay: 3600000,
};
export const JOB_SUMMARY = {
  id: "value", task: "value", queue: "value", state: "value", priority: "value", group: "value", key: "value",
  lane: "value", seq: "value", generation: "value", attempt: "value", failures: "value", max_attempts: "value",
  archived: "value", enqueued_at: "instant", available_at: "instant", started_at: "instant", finished_at: "instant",
  worker: "value", lease_until: "instant", timeout: "seconds", after: "value", blocked_by: "value", reason: "value",
  error: "value", tags: "value",
};
export const JOB_DETAILS = {
  payload: "value", result: "value", has_result: "value", result_expired: "value", progress: "value", serde: "value",
  headers: "value", flow: "value", enqueued_by: "value", continued_by: "value", on_dependency: "value", stalls: "value",
  snoozes: "value", releases: "value", replays: "value", cancel_requested: "value", expires_at: "instant",
  next_retry_at: "instant", lease: "seconds", attempts: "value", log: "value", fingerprint: "value",
};
export const EVENT_VIEW = {
  job: "value", seq: "value", generation: "value", n: "value", kind: "value", at: "instant", queue: "value",
  task: "value", state: "value", attempt: "value", failures: "value", worker: "value", lease: "value", delay: "seconds",
  duration: "seconds", reason: "value", error: "value",
};
export const WORKER_VIEW = {
  id: "value", alive: "value", host: "value", pid: "value", version: "value", queues: "value", tasks: "value",
  slots: "value", shards: "value", running: "value", completed: "value", failed: "value", started_at: "instant",
  last_beat: "instant", ttl: "seconds",
};
export const SCHEDULE_VIEW = {
  name: "value", expression: "value", tz: "value", task: "value", queue: "value", missed: "value", grace: "seconds",
  digest: "value", mark: "instant", rev: "value", last_tick: "instant", next_tick: "instant", paused: "value",
  source: "value",
};
export const SETTINGS_VIEW = {
  max_running: "value", rate: "value", burst: "value", paused: "value", paused_lanes: "value", lanes: "value",
  max_depth: "value", fair_share: "value", on_empty: "value", keep_completed: "seconds", keep_dead: "seconds",
  dead_cap: "value", dead_overflow: "value", auto_retries: "value", auto_retry_delay: "seconds",
};
export const FACTS = [
  "generation", "queue", "task", "state", "attempt", "failures", "worker", "lease", "due_at", "started_at",
  "finished_at", "reason", "error", "archived", "kept",
];
export const SUMS = [
  "archived", "blocked", "cancelled", "completed", "dead", "died", "processed", "ready", "retrying", "running",
  "scheduled", "waiting",
];
export const ALIASES = {
  pending: "waiting", queued: "ready", active: "running", processing: "running", delayed: "scheduled",
  failing: "retrying", failed: "dead", dlq: "dead",
};
export const USUAL_STATES = {
  replay: ["dead"], archive: ["completed", "dead", "cancelled"], unarchive: ["completed", "dead", "cancelled"],
};
export const PHRASES = [
  "access key", "api key", "auth", "authorization", "bearer", "card number", "connection string", "connection uri",
  "connection url", "cookie", "credential", "cvc", "cvv", "database uri", "database url", "dsn", "encryption key",
  "iban", "jwt", "otp", "passcode", "passphrase", "passwd", "password", "pin", "private key", "pwd", "secret",
  "secret key", "session id", "session key", "signing key", "ssh key", "ssn", "token", "totp",
];
export const COUNTS = [
  "completion tokens", "input tokens", "max tokens", "min tokens", "num tokens", "number of tokens", "output tokens",
  "prompt tokens", "tokens used", "total tokens", "used tokens",
];
