// What an action does: the text of the confirmation dialog.

import { h } from "../core/dom.js";
import { listed, serving } from "./attention.js";

const ONE = {
  replay: [
    "It keeps its id and its history, and goes back to its queue at once, with 0 failures.",
    "It may already have had effects (sent mail, charged a card). They can happen again.",
  ],
  cancel: [
    "It will not run. Jobs that depend on it become dead, unless their on_dependency says otherwise.",
    "A cancelled job can be replayed for as long as it is kept.",
  ],
  request: [
    "Its worker is notified with its next heartbeat and stops the handler; a handler in a thread has to call ctx.check().",
    "Effects until then are not undone. The job is cancelled, and not retried.",
  ],
  archive: ["It keeps its state. Lists do not show it until it is unarchived, or its retention is over."],
  unarchive: ["It is shown in lists again."],
  delete: ["Its payload, result and error are deleted. Its history stays for as long as events are kept."],
};
const MANY = {
  replay: [
    "They keep their ids and histories, and go back to their queues with 0 failures. All are due at " +
      "once; the limits of their queues decide how fast they start.",
    "These jobs may already have had effects (sent mail, charged cards). They can happen again.",
  ],
  cancel: [
    "They will not run; running jobs continue. Jobs that depend on them become dead, unless their on_dependency says " +
      "otherwise.",
    "Cancelled jobs can be replayed for as long as they are kept.",
  ],
  request: [
    "Their workers are notified with their next heartbeats and stop the handlers; handlers in threads have to call " +
      "ctx.check().",
    "Effects until then are not undone. The jobs are cancelled, and not retried.",
  ],
  archive: [
    "They keep their states. Lists do not show them until they are unarchived, or their retention is over.",
  ],
  unarchive: ["They are shown in lists again."],
  delete: [
    "Their payloads, results and errors are deleted. Their histories stay for as long as events are kept.",
  ],
};

/** Paragraphs: what it does, and warnings. `queues` are those that the jobs go back to, as far as they are known. */
export async function consequences(app, verb, { many = false, queues = [] } = {}) {
  const [does, ...mind] = (many ? MANY : ONE)[verb];
  if (verb === "replay") {
    const noWorker = await unserved(app, queues);
    if (noWorker) mind.push(`${noWorker}: ${many ? "they wait" : "it waits"} until there is one.`);
  }
  return [h("p", { key: "does" }, does), mind.map((text) => h("p", { key: text, class: "mind" }, text))];
}

/** A missing worker only adds a note to the question; so does an answer that is not known. */
async function unserved(app, queues) {
  const seen = await app.attention.load().catch(() => null);
  if (!seen) return null;
  if (!seen.workers.some((one) => one.alive)) return "No worker is active";
  const lonely = queues.filter((queue) => !serving(seen.workers, queue).length);
  return lonely.length ? `No active worker serves ${listed(lonely)}` : null;
}
