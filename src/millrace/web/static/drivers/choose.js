// Where the page gets its data from. The screens know only this interface, and every answer has the shape that
// /openapi.json defines for the same path, whichever driver answers:
//
//   driver.request(method, path, {query, body, signal})   → the JSON; throws a Problem (problem.js) on a refusal.
//                                                           A list in `query` is a parameter that is repeated.
//   driver.stream(path, onEvent)  → a function that stops it; null where there are no live events.
//                                   onEvent({kind, data()}): kinds as in docs/web.md, and "open" and "cut".
//   driver.can     a Set: the screens it can fill (overview jobs dead queues pools workers schedules health) and what it
//                  can do (cancel replay archive bulk pause drain settings obliterate schedules:act schedules:remove
//                  events why diff dependents throughput ended audit). What it cannot do is not shown. `ended`: filters
//                  by when a job ended.
//   driver.now()   the store's clock, in milliseconds, as well as it is known.
//   driver.about   {label, leave}: text for the footer of the page; `leave()` forgets a token or key, if there is one.
//   driver.further()  looks at more from now on, where answers say that they are not `complete`; absent where there is
//                  no such bound.
//   driver.shards  the names of shards to choose from, sent as `shard` with lists of jobs; null where there are none.
//
// A module of a driver exports open(base, ask): `base` is the page's folder as a URL, and ask({title, text, fields,
// submit, wrong}) asks the user for something in a dialog and answers an object of what was filled in.

import { Problem } from "./problem.js";

export async function choose(ask) {
  const base = new URL(".", document.baseURI);
  const { open } = (await isServed(base)) ? await import("./http.js") : await import("./s3/driver.js");
  return open(base, ask);
}

/** A Millrace server reports its health even when its store is down; a bucket has no such object and answers 404. Any
    other answer comes from a proxy whose server is down for a moment: the page does not ask for a bucket's keys then. */
async function isServed(base) {
  let answer;
  try {
    answer = await fetch(new URL("health", base), { cache: "no-store" });
  } catch {
    if (await isConfigured(base)) return false;
    throw away();
  }
  const text = await answer.text().catch(() => "");
  if (saysHow(text)) return true;
  if ((answer.status === 403 || answer.status === 404) && /^\s*<\?xml[^]*<Error>/.test(text)) return false;
  if (await isConfigured(base)) return false;
  throw away();
}

function saysHow(text) {
  try {
    const { status, version } = JSON.parse(text);
    return typeof version === "string" && (status === "ok" || status === "down");
  } catch {
    return false;
  }
}

/** `millrace init` writes this file next to a page in a bucket; elsewhere, the host of the page provides it. */
async function isConfigured(base) {
  try {
    const answer = await fetch(new URL("config.json", base), { cache: "no-store" });
    return answer.ok && typeof (await answer.json()) === "object";
  } catch {
    return false;
  }
}

function away() {
  return new Problem({
    title: "No response",
    code: "unreachable",
    detail: "unexpected response from the server. It may be starting; try again. If this page is in a bucket, its config.json is missing",
  });
}
