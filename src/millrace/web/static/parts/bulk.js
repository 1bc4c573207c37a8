// One deed for many jobs. All that fit are counted first; the count is what the user agrees to, and the server does
// nothing when there are more by then. Then there are some seconds to take it back.

import { h } from "../core/dom.js";
import { count, plural } from "../core/text.js";
import { sure } from "./ask.js";
import { consequences } from "./consequences.js";
import { later, note } from "./notes.js";

const WAITING = ["ready", "scheduled", "retrying", "blocked"];
const ENDED = ["completed", "dead", "cancelled"];
// `of`: what it can be done to; `usual`: what it is done to where no state is named, and what these are called.
const DEEDS = [
  { verb: "replay", label: "Replay", done: "Replayed", can: "replay", of: ENDED, usual: [["dead"], "dead"] },
  {
    verb: "cancel",
    label: "Cancel",
    done: "Cancelled",
    can: "cancel",
    of: WAITING,
    usual: [WAITING, "waiting"],
    danger: true,
  },
  { verb: "request", label: "End", done: "Asked to end:", can: "cancel", of: ["running"], usual: null, danger: true },
  { verb: "archive", label: "Archive", done: "Archived", can: "archive", of: ENDED, usual: [ENDED, "ended"] },
  { verb: "unarchive", label: "Unarchive", done: "Unarchived", can: "archive", of: ["archived"], usual: null },
];
// What can still be done when it has begun.
const AFTER = {
  replay: "cancelled for as long as they wait",
  cancel: "replayed",
  request: "replayed",
  archive: "unarchived",
  unarchive: "archived again",
};
const SHOWN = 5;

/** What can be done with these jobs, in this list. */
export function deeds(app, jobs, status) {
  const states = new Set(jobs.map(seenAs));
  if (status) states.add(status);
  return DEEDS.filter((deed) => app.can(deed.can) && deed.of.some((name) => states.has(name)));
}

export function deed(verb) {
  return DEEDS.find((one) => one.verb === verb);
}

function seenAs(job) {
  return job.archived ? "archived" : job.state;
}

/** What a deed means for all that match: {word, number} of the jobs, the number null where only a count would tell;
    null where the deed is not for what is listed. `whole`: the list has all that match. */
export function scope(deed, { status, queue, narrowed }, jobs, whole, queues) {
  if (status ? !deed.of.includes(status) : !deed.usual) return null;
  const [states, word] = status ? [[status], status] : deed.usual;
  if (whole) return { word, number: jobs.filter((job) => states.includes(seenAs(job))).length };
  const mine = queues.filter((one) => !queue || one.queue === queue);
  // Counts of states have archived jobs in them, and lists do not.
  if (narrowed || mine.some((one) => one.archived)) return { word, number: null };
  return { word, number: mine.reduce((sum, one) => sum + states.reduce((all, name) => all + one[name], 0), 0) };
}

function asked(deed) {
  return deed.verb === "request" ? { action: "cancel", running: "request" } : { action: deed.verb };
}

export async function forChosen(app, deed, jobs, after) {
  const many = plural(jobs.length, "job");
  const ids = jobs.map((job) => job.id);
  const queues = [...new Set(jobs.map((job) => job.queue))];
  const agreed = await sure({
    title: `${deed.label} ${many}?`,
    details: [await consequences(app, deed.verb, { many: ids.length > 1, queues }), sample(ids, ids.length)],
    submit: `${deed.label} ${many}`,
    danger: deed.danger,
  });
  if (!agreed) return;
  const answer = await app.act("POST", "/api/bulk", { ...asked(deed), ids, dry_run: false }, (got) => told(deed, got));
  if (answer) after();
  app.draw();
}

/** Counts, asks, waits for an undo, and does it. `filter` is one of /api/bulk; `queues` those it is about. */
export async function forMatching(app, deed, filter, { words = "that match", queues = [] } = {}) {
  let counted;
  try {
    counted = await app.request("POST", "/api/bulk", { body: { ...asked(deed), filter, dry_run: true } });
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
      h("p", { key: "which" }, which(counted, words)),
      await consequences(app, deed.verb, { many: matched > 1, queues }),
      sample(counted.sample, matched),
      h("p", { key: "undo" }, `It begins 8 seconds after you agree: until then you can undo it, or close this page. After that they can be ${AFTER[deed.verb]}.`),
    ],
    submit: `${deed.label} ${jobs}`,
    danger: deed.danger,
  });
  if (!agreed) return;
  const body = { ...asked(deed), filter, dry_run: false, expect: matched };
  later(`${deed.label} ${jobs}`, () => app.act("POST", "/api/bulk", body, (got) => told(deed, got)));
}

function which({ matched, complete }, words) {
  if (complete === false) return `There may be more ${words}: not all jobs could be looked at. Do it again afterwards.`;
  return matched === 1 ? `It is the only one ${words}.` : `These are all ${words}.`;
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
