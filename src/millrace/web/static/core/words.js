// One word for one thing: what the steps of a job and the reasons of its end are called, wherever they are shown.

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
  snoozed: "put off by its handler",
  reclaimed: "its lease had ended",
  evicted: "there were too many dead jobs",
  pruned: "it was kept for as long as it was to be",
};
const REASONS = {
  max_attempts_exceeded: "all its attempts failed",
  timeout: "it ran for longer than its time limit",
  ttl_expired: "it expired before it could run",
  dependency_failed: "a job that it waited for is dead or was cancelled",
  explicit_fail: "its handler gave it up",
  stalled: "its worker went silent too often while it ran",
  worker_lost: "its worker was gone too often while it ran",
};

export function step(kind) {
  return STEPS[kind] ?? kind;
}

/** What a step's word leaves open; empty for most. */
export function more(kind) {
  return MORE[kind] ?? "";
}

export function reason(code) {
  return REASONS[code] ?? (code ?? "").replaceAll("_", " ");
}
