// One action for many jobs: by id, or all that a filter finds. By filter the dry run comes first, and what is done is at
// most what it counted.

import { actOn } from "./actions.js";
import { find, readQuery } from "./search.js";
import { refused } from "./problems.js";
import { USUAL_STATES } from "./tables.js";

const MOST = 1_000;

export async function bulk(store, { action, ids = null, filter = null, dry_run = true, expect = null }) {
  if (!USUAL_STATES[action]) throw refused(400, "invalid", `${action} needs a server; here jobs can be replayed and archived.`);
  if (ids === null && !Object.values(filter ?? {}).some((value) => value !== null && value !== "")) {
    throw refused(400, "invalid", "An empty filter matches every job. Name at least a status or a queue.");
  }
  if (ids === null && !dry_run && expect === null) {
    throw refused(400, "invalid", "`expect` is missing: how many jobs the dry run counted.");
  }
  if (ids === null && dry_run) filter = asOf(store, filter);
  const { found: chosen, complete } = ids ? { found: ids, complete: true } : await matching(store, action, filter);
  const matched = chosen.length;
  const answer = { action, dry_run, matched, complete, filter, sample: chosen.slice(0, 10), answers: {}, done: 0 };
  if (dry_run) return answer;
  if (ids === null && chosen.length > expect) {
    throw refused(409, "more_match", `${chosen.length} jobs match now, but ${expect} were expected. Nothing was changed; refresh and try again.`);
  }
  for (const one of await actOn(store, action, chosen, { tolerant: true })) {
    answer.answers[one.answer] = (answer.answers[one.answer] ?? 0) + 1;
    answer.done += one.done;
  }
  return answer;
}

/** The same jobs whenever it is used: without those that end later, and with times that stay. */
function asOf(store, filter) {
  const query = readQuery(filter, store);
  const { from: since, to: until, endedFrom: finished_from } = query;
  const times = { since, until, finished_from, finished_to: Math.min(store.now + 1, query.endedTo ?? Infinity) };
  const given = Object.entries(times).filter(([, at]) => at !== null);
  return { ...filter, ...Object.fromEntries(given.map(([name, at]) => [name, new Date(at).toISOString()])) };
}

async function matching(store, action, filter) {
  const found = [];
  let complete = true;
  for (const status of filter.status ? [filter.status] : USUAL_STATES[action]) {
    const search = { ...readQuery({ ...filter, status }, store), limit: 200 };
    if (action === "unarchive") search.archived = true;
    do {
      const page = await find(store, search);
      found.push(...page.jobs.map((job) => job.id));
      complete &&= page.complete;
      if (found.length > MOST) {
        throw refused(422, "too_many", `More than ${MOST} jobs match. On the command line: millrace ${action} with the same filter.`);
      }
      search.cursor = page.cursor;
    } while (search.cursor !== null);
  }
  return { found, complete };
}
