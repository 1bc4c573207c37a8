// The labels of events and of reasons for a job's end, the same on all screens.

const STEPS = {
  unblocked: "no longer blocked",
  claimed: "started",
  retried: "failed, will retry",
  released: "given back",
  buried: "dead",
  reclaimed: "taken over",
  evicted: "removed",
  pruned: "removed",
};
const MORE = {
  snoozed: "delayed by its handler",
  reclaimed: "its lease had expired",
  evicted: "there were too many dead jobs",
  pruned: "its retention was over",
};
const REASONS = {
  max_attempts_exceeded: "all its attempts failed",
  timeout: "it ran for longer than its time limit",
  ttl_expired: "it expired before it could run",
  dependency_failed: "a job that it waited for is dead or was cancelled",
  explicit_fail: "its handler raised Bury",
  stalled: "its worker died too often while running it",
  payload_invalid: "its payload does not fit its task",
  not_retried: "its exception is one that the task does not retry",
  result_invalid: "its handler ran, but its result cannot be stored",
  unknown_task: "no worker knows its task",
  worker_lost: "its worker was lost too often while running it",
};

export function step(kind) {
  return STEPS[kind] ?? kind;
}

/** Details that a label does not contain; empty for most. */
export function more(kind) {
  return MORE[kind] ?? "";
}

export function reason(code) {
  return REASONS[code] ?? (code ?? "").replaceAll("_", " ");
}
