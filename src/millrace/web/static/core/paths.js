// Paths of the API. Ids may hold anything, so they are coded.

import { Problem } from "../drivers/problem.js";

const DOTS = new Set([".", ".."]); // in a path they mean something else, and no coding of them helps

export function jobPath(id, rest = "") {
  if (DOTS.has(id)) {
    throw new Problem({
      title: "Cannot be shown",
      code: "address",
      detail: `no address can hold the id ${id}. On the command line: millrace status ${id}`,
    });
  }
  return `/api/jobs/${encodeURIComponent(id)}${rest}`;
}

export function queuePath(name, rest = "") {
  return `/api/queues/${named(name)}${rest}`;
}

export function schedulePath(name, rest = "") {
  return `/api/schedules/${named(name)}${rest}`;
}

/** A server reads these with a sign before them, which no name begins a path with. */
function named(name) {
  return DOTS.has(name) ? `~${name}` : encodeURIComponent(name);
}
