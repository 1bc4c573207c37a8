// Throughput: the time of a job's end is part of its key, so a listing covers the last quarter of an hour. Jobs that
// are not kept after their end are missing, and so are those that were replayed since.

import { newest } from "./index_keys.js";
import { seconds, when } from "./views.js";

const STEP = 10_000; // milliseconds
const WINDOW = 900_000;

export async function throughput(store) {
  const { entries } = await store.index.entries();
  const now = store.now;
  const last = Math.floor(now / STEP) * STEP;
  const steps = Array.from({ length: WINDOW / STEP + 1 }, () => ({ completed: 0, died: 0 }));
  for (const { state, at } of newest(entries)) {
    const step = Math.ceil((at - last) / STEP) + WINDOW / STEP - 1;
    if (state === "completed" && step in steps) steps[step].completed += 1;
    if (state === "dead" && step in steps) steps[step].died += 1;
  }
  const unfinished = { at: when(now), ...steps.pop() };
  const points = steps.map((step, n) => ({ at: when(last - WINDOW + (n + 1) * STEP), ...step }));
  return { now: when(now), step: seconds(STEP), points, unfinished };
}
