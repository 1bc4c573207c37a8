// One action for many jobs. The matching jobs are counted first; the user confirms the count, and the server does
// nothing if there are more by then. The user then has some seconds to undo it.

import { h } from "../core/dom.js";
import { count, plural } from "../core/text.js";
import { sure } from "./dialogs.js";
import { consequences } from "./consequences.js";
import { later, note } from "./notes.js";

const WAITING = ["ready", "scheduled", "retrying", "blocked"];
const ENDED = ["completed", "dead", "cancelled"];
// `of`: the states it applies to; `usual`: the states and their name if no state is selected.
const ACTIONS = [
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
  { verb: "request", label: "Stop", done: "Stop requested:", can: "cancel", of: ["running"], usual: null, danger: true },
  { verb: "archive", label: "Archive", done: "Archived", can: "archive", of: ENDED, usual: [ENDED, "ended"] },
  { verb: "unarchive", label: "Unarchive", done: "Unarchived", can: "archive", of: ["archived"], usual: null },
  { verb: "delete", label: "Delete", done: "Deleted", can: "delete", of: [...ENDED, "archived"], usual: null, danger: true },
];
// What can still be done after it has begun.
const AFTER = {
  replay: "cancelled for as long as they wait",
  cancel: "replayed",
  request: "replayed",
  archive: "unarchived",
  unarchive: "archived again",
};
const afterwards = ({ verb }) => (AFTER[verb] ? `After that they can be ${AFTER[verb]}.` : "It cannot be undone.");
const PAST = {
  replay: "replayed",
  cancel: "cancelled",
  request: "stopped",
  archive: "archived",
  unarchive: "unarchived",
  delete: "deleted",
};
const SHOWN = 5;

/** The actions for these jobs, in this list. */
export function actions(app, jobs, status) {
  const states = new Set(jobs.map(seenAs));
  if (status) states.add(status);
  return ACTIONS.filter((action) => app.can(action.can) && action.of.some((name) => states.has(name)));
}

export function action(verb) {
  return ACTIONS.find((one) => one.verb === verb);
}

function seenAs(job) {
  return job.archived ? "archived" : job.state;
}

/** What an action means for all that match: {word, number} of the jobs, the number null where only a count would tell;
    null where the action is not for what is listed. `whole`: the list has all that match. */
export function scope(action, { status, queue, narrowed }, jobs, whole, queues) {
  if (status ? !action.of.includes(status) : !action.usual) return null;
  const [states, word] = status ? [[status], status] : action.usual;
  if (whole) return { word, number: jobs.filter((job) => states.includes(seenAs(job))).length };
  const mine = queues.filter((one) => !queue || one.queue === queue);
  // Counts of states include archived jobs, and lists do not.
  if (narrowed || mine.some((one) => one.archived)) return { word, number: null };
  return { word, number: mine.reduce((sum, one) => sum + states.reduce((all, name) => all + one[name], 0), 0) };
}

function asked(action) {
  return action.verb === "request" ? { action: "cancel", running: "request" } : { action: action.verb };
}

export async function forChosen(app, action, jobs, after) {
  const many = plural(jobs.length, "job");
  const ids = jobs.map((job) => job.id);
  const queues = [...new Set(jobs.map((job) => job.queue))];
  const agreed = await sure({
    title: `${action.label} ${many}?`,
    details: [await consequences(app, action.verb, { many: ids.length > 1, queues }), sample(ids, ids.length), undo(action)],
    submit: `${action.label} ${many}`,
    danger: action.danger,
  });
  if (!agreed) return;
  const body = { ...asked(action), ids, dry_run: false };
  later(`${action.label} ${many}`, () => app.act("POST", "/api/bulk", body, (got) => summary(action, got)));
  after();
  app.draw();
}

/** Count, ask, wait for an undo, and run the action. `filter` is one of /api/bulk; `queues` are those of the jobs. */
export async function forMatching(app, action, filter, { words = "that match", queues = [] } = {}) {
  let counted;
  try {
    counted = await app.request("POST", "/api/bulk", { body: { ...asked(action), filter, dry_run: true } });
  } catch (error) {
    note(error.detail ?? String(error), "wrong");
    return;
  }
  const { matched } = counted;
  if (matched === 0) {
    note(`No job ${words} can be ${PAST[action.verb]}`);
    return;
  }
  const jobs = plural(matched, "job");
  const agreed = await sure({
    title: `${action.label} ${jobs}?`,
    details: [
      h("p", { key: "which" }, which(counted, words)),
      await consequences(app, action.verb, { many: matched > 1, queues }),
      sample(counted.sample, matched),
      undo(action),
    ],
    submit: `${action.label} ${jobs}`,
    danger: action.danger,
  });
  if (!agreed) return;
  const body = { ...asked(action), filter: counted.filter, dry_run: false, expect: matched };
  later(`${action.label} ${jobs}`, () => app.act("POST", "/api/bulk", body, (got) => summary(action, got)));
}

function undo(action) {
  const words = "It starts 8 seconds after you confirm: until then you can undo it, or close this page.";
  return h("p", { key: "undo" }, `${words} ${afterwards(action)}`);
}

function which({ matched, complete }, words) {
  if (complete === false) return `There may be more ${words}: not all jobs could be read. Repeat it afterwards.`;
  return matched === 1 ? `It is the only one ${words}.` : `These are all ${words}.`;
}

function sample(ids, total) {
  const shown = ids.slice(0, SHOWN);
  return h("ul", { class: "sample" },
    shown.map((id) => h("li", { key: id }, h("code", null, id))),
    total > shown.length ? h("li", { key: "more" }, `and ${count(total - shown.length)} more`) : null,
  );
}

function summary(action, { matched, done, answers }) {
  if (done === matched) return `${action.done} ${plural(done, "job")}`;
  const rest = Object.entries(answers).map(([answer, number]) => `${count(number)} ${answer.replaceAll("_", " ")}`);
  return `${action.done} ${count(done)} of ${plural(matched, "job")} (${rest.join(", ")})`;
}
