// One deed for many jobs: by id, or all that a filter finds. By filter the dry run comes first, and what is done is at
// most what it counted.

import { actOn } from "./acts.js";
import { find, readQuery } from "./finding.js";
import { refused } from "./refusals.js";

const MOST = 1_000;
const STATES = { replay: ["dead"], archive: ["completed", "dead", "cancelled"], unarchive: ["completed", "dead", "cancelled"] };

export async function bulk(store, { action, ids = null, filter = null, dry_run = true, expect = null }) {
  if (!STATES[action]) throw refused(400, "invalid", `${action} needs a server; here jobs can be replayed and archived.`);
  if (ids === null && !Object.values(filter ?? {}).some((value) => value !== null && value !== "")) {
    throw refused(400, "invalid", "A filter without a word would mean every job. Say which.");
  }
  if (ids === null && !dry_run && expect === null) {
    throw refused(400, "invalid", "`expect` is missing: how many jobs the dry run counted.");
  }
  const { found: chosen, complete } = ids ? { found: ids, complete: true } : await matching(store, action, filter);
  const matched = chosen.length;
  const answer = { action, dry_run, matched, complete, sample: chosen.slice(0, 10), answers: {}, done: 0 };
  if (dry_run) return answer;
  if (ids === null && chosen.length > expect) {
    throw refused(409, "more_match", `${chosen.length} jobs fit by now, and ${expect} were expected. Nothing was done; look again.`);
  }
  for (const one of await actOn(store, action, chosen, { tolerant: true })) {
    answer.answers[one.answer] = (answer.answers[one.answer] ?? 0) + 1;
    answer.done += one.done;
  }
  return answer;
}

async function matching(store, action, filter) {
  const found = [];
  let complete = true;
  for (const status of filter.status ? [filter.status] : STATES[action]) {
    const search = { ...readQuery({ ...filter, status }, store), limit: 200 };
    if (action === "unarchive") search.archived = true;
    do {
      const page = await find(store, search);
      found.push(...page.jobs.map((job) => job.id));
      complete &&= page.complete;
      if (found.length > MOST) {
        throw refused(422, "too_many", `More than ${MOST} jobs fit. On the command line: millrace ${action} with the same filter.`);
      }
      search.cursor = page.cursor;
    } while (search.cursor !== null);
  }
  return { found, complete };
}
