// One deed for many jobs. All that fit are counted first; the count is what the user agrees to, and the server does
// nothing when there are more by then. Then there are some seconds to take it back.

import { h } from "../core/dom.js";
import { count, plural } from "../core/text.js";
import { sure } from "./ask.js";
import { later, note } from "./notes.js";

const DEEDS = [
  { verb: "replay", label: "Replay", done: "Replayed", can: "replay", of: ["dead", "cancelled", "completed"] },
  {
    verb: "cancel",
    label: "Cancel",
    done: "Cancelled",
    can: "cancel",
    of: ["ready", "scheduled", "retrying", "blocked", "running"],
    danger: true,
  },
  { verb: "archive", label: "Archive", done: "Archived", can: "archive", of: ["dead", "cancelled", "completed"] },
  { verb: "unarchive", label: "Unarchive", done: "Unarchived", can: "archive", of: ["archived"] },
];
const SHOWN = 5;

/** What can be done with these jobs, in this list. */
export function deeds(app, jobs, status) {
  const states = new Set(jobs.flatMap((job) => (job.archived ? ["archived"] : [job.state])));
  if (status) states.add(status);
  return DEEDS.filter((deed) => app.can(deed.can) && deed.of.some((name) => states.has(name)));
}

export function deed(verb) {
  return DEEDS.find((one) => one.verb === verb);
}

export async function forChosen(app, deed, ids, after) {
  const agreed = await sure({
    title: `${deed.label} ${plural(ids.length, "job")}?`,
    details: sample(ids, ids.length),
    submit: `${deed.label} ${plural(ids.length, "job")}`,
    danger: deed.danger,
  });
  if (!agreed) return;
  const answer = await app.act(
    "POST",
    "/api/bulk",
    { action: deed.verb, ids, dry_run: false },
    (got) => told(deed, got),
  );
  if (answer) after();
  app.draw();
}

/** Counts, asks, waits for an undo, and does it. `filter` is one of /api/bulk. */
export async function forMatching(app, deed, filter, words = "that fit the filters") {
  let counted;
  try {
    counted = await app.request("POST", "/api/bulk", { body: { action: deed.verb, filter, dry_run: true } });
  } catch (error) {
    note(error.detail ?? String(error), "wrong");
    return;
  }
  const { matched } = counted;
  if (matched === 0) {
    note(`There is nothing to ${deed.verb}: no job ${words.replace(/^that /, "")} can be`);
    return;
  }
  const jobs = plural(matched, "job");
  const agreed = await sure({
    title: `${deed.label} ${jobs}?`,
    details: [
      h("p", null, `These are all ${words}. It begins 8 seconds after you agree; until then you can undo it.`),
      sample(counted.sample, matched),
    ],
    submit: `${deed.label} ${jobs}`,
    danger: deed.danger,
  });
  if (!agreed) return;
  later(`${deed.label} ${jobs}`, () =>
    app.act(
      "POST",
      "/api/bulk",
      { action: deed.verb, filter, dry_run: false, expect: matched },
      (got) => told(deed, got),
    ),
  );
}

function sample(ids, total) {
  const shown = ids.slice(0, SHOWN);
  return h(
    "ul",
    { class: "sample" },
    shown.map((id) => h("li", { key: id }, h("code", null, id))),
    total > shown.length ? h("li", { key: "more" }, `and ${count(total - shown.length)} more`) : null,
  );
}

function told(deed, { matched, done, answers }) {
  if (done === matched) return `${deed.done} ${plural(done, "job")}`;
  const rest = Object.entries(answers).map(([answer, number]) => `${count(number)} ${answer.replaceAll("_", " ")}`);
  return `${deed.done} ${count(done)} of ${plural(matched, "job")} (${rest.join(", ")})`;
}
