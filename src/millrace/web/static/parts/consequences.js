// What a deed does, in the sentences of the question before it.

import { h } from "../core/dom.js";
import { listed, serving } from "./attention.js";

const ONE = {
  replay: [
    "It keeps its id and its history, and goes back to its queue at once, with a fresh budget of attempts.",
    "If it had an effect before it failed, that may happen twice.",
  ],
  cancel: [
    "It will not run. Jobs that wait for it follow their own rule, which is to be dead with it unless they say otherwise.",
    "A cancelled job can be replayed for as long as it is kept.",
  ],
  request: [
    "Its worker hears of it with its next heartbeat and ends the handler; a handler in a thread has to look by itself.",
    "What it has done until then stays done. It is cancelled, and not tried again.",
  ],
  archive: ["It stays what it is, out of sight of lists until it is unarchived, or its time to be kept is over."],
  unarchive: ["It is shown in lists again."],
};
const MANY = {
  replay: [
    "They keep their ids and histories, and go back to their queues with a fresh budget of attempts. All are due at once: the limits of their queues bound how fast they start.",
    "What had an effect before it failed may have it twice.",
  ],
  cancel: [
    "They will not run; what runs already goes on. Jobs that wait for them follow their own rule, which is to be dead with them unless they say otherwise.",
    "Cancelled jobs can be replayed for as long as they are kept.",
  ],
  request: [
    "Their workers hear of it with their next heartbeats and end the handlers; handlers in threads have to look by themselves.",
    "What they have done until then stays done. They are cancelled, and not tried again.",
  ],
  archive: ["They stay what they are, out of sight of lists until they are unarchived, or their time to be kept is over."],
  unarchive: ["They are shown in lists again."],
};

/** Paragraphs: what it does, and what to mind. `queues` are those that the jobs go back to, as far as they are known. */
export async function consequences(app, verb, { many = false, queues = [] } = {}) {
  const [does, ...mind] = (many ? MANY : ONE)[verb];
  if (verb === "replay") {
    const nobody = await unserved(app, queues);
    if (nobody) mind.push(`${nobody}: ${many ? "they wait" : "it waits"} until there is one.`);
  }
  return [h("p", { key: "does" }, does), mind.map((text) => h("p", { key: text, class: "mind" }, text))];
}

/** Nobody to run it is no reason not to ask, and neither is not to know. */
async function unserved(app, queues) {
  const seen = await app.attention.load().catch(() => null);
  if (!seen) return null;
  if (!seen.workers.some((one) => one.alive)) return "No worker is active";
  const lonely = queues.filter((queue) => !serving(seen.workers, queue).length);
  return lonely.length ? `No active worker serves ${listed(lonely)}` : null;
}
