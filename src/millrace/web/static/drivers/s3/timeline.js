// What a job was after each of its events, and what changed between two (the rules of src/millrace/views/timeline.py).

import { FACTS } from "./tables.js";
import { when } from "./views.js";

const INSTANTS = new Set(["due_at", "started_at", "finished_at"]);
const ENDS = new Set(["completed", "buried", "cancelled"]);
const BACK = new Set(["enqueued", "retried", "snoozed", "released", "replayed"]);

export function factsAfter(events) {
  const known = [];
  for (const event of events) known.push(next(known.at(-1) ?? null, event));
  return known;
}

/** [{fact, before, after}]; before the first event there was nothing. */
export function changes(before, after) {
  const pairs = FACTS.map((name) => ({ fact: name, before: before?.[name] ?? null, after: after[name] }));
  const seen = before
    ? pairs.filter((one) => JSON.stringify(one.before) !== JSON.stringify(one.after))
    : pairs.filter((one) => ![null, 0, false].includes(one.after) && one.fact !== "kept");
  return seen.map(({ fact, before: was, after: is }) =>
    INSTANTS.has(fact) ? { fact, before: when(was), after: when(is) } : { fact, before: was, after: is },
  );
}

function next(before, event) {
  if (before === null || event.kind === "enqueued" || before.generation !== event.generation) before = fresh(event);
  const running = event.state === "running";
  const now = {
    ...before,
    state: event.state,
    attempt: event.attempt ?? 0,
    failures: event.failures ?? 0,
    worker: running ? ((event.kind === "reclaimed" ? event.reason : event.worker) ?? null) : null,
    lease: running ? (event.lease ?? null) : null,
    due_at: BACK.has(event.kind) ? event.at + (event.delay ?? 0) : before.due_at,
  };
  if (event.kind === "claimed") return { ...now, started_at: event.at };
  if (ENDS.has(event.kind)) Object.assign(now, { finished_at: event.at, reason: event.reason ?? null });
  switch (event.kind) {
    case "retried":
    case "buried":
      return { ...now, error: event.error ?? null };
    case "completed":
      return { ...now, error: null };
    case "replayed":
      return { ...now, finished_at: null, reason: null, error: null, archived: false };
    case "archived":
    case "unarchived":
      return { ...now, archived: event.kind === "archived" };
    default:
      return { ...now, kept: !["pruned", "evicted"].includes(event.kind) };
  }
}

function fresh({ generation, queue, task, state, at }) {
  const empty = Object.fromEntries(FACTS.map((name) => [name, null]));
  return { ...empty, generation, queue, task, state, attempt: 0, failures: 0, due_at: at, archived: false, kept: true };
}
