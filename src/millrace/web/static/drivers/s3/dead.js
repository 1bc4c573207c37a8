// Causes of death: dead jobs grouped by their error, the most frequent first.

import { find, readQuery } from "./search.js";
import { cause, fingerprint } from "./fingerprint.js";
import { secretsOf, when } from "./views.js";

const PATIENCE = 3_000; // milliseconds; records are cached, so the next call reads further

export async function causes(store, query, signal) {
  const limit = Math.min(500, Math.max(1, Number(query.limit ?? 50) || 50));
  const search = { ...readQuery({ ...query, status: "dead" }, store, signal), limit: 200 };
  const known = new Map();
  const until = performance.now() + PATIENCE;
  let total = 0;
  let page;
  do {
    page = await find(store, search);
    for (const job of page.jobs) {
      total += 1;
      await add(known, job);
    }
    search.cursor = page.cursor;
  } while (page.cursor !== null && performance.now() < until);
  const ordered = [...known.values()].sort((a, b) => b.count - a.count || b.last - a.last).slice(0, limit);
  const shown = ordered.map((one) => causeShown(one, store.redaction));
  return { total, complete: page.cursor === null && page.complete, causes: shown, cursor: page.cursor };
}

async function add(known, job) {
  const mark = await fingerprint(job);
  const at = job.finished_at ?? 0;
  const one = known.get(mark) ?? { mark, count: 0, first: at, last: 0, queues: {}, example: job };
  known.set(mark, one);
  one.count += 1;
  one.queues[job.queue] = (one.queues[job.queue] ?? 0) + 1;
  one.first = Math.min(one.first, at);
  if (at >= one.last) [one.last, one.example] = [at, job];
}

function causeShown({ mark, count, first, last, queues, example }, rule) {
  // Redact before removing the varying parts: part of a secret would no longer be recognized.
  const error = cause({ ...example, error: secretsOf(example, rule).failure(example.error) });
  return {
    fingerprint: mark,
    count,
    task: example.task,
    reason: example.reason,
    error,
    first_at: when(first),
    last_at: when(last),
    queues,
    example: example.id,
  };
}
