// Paths of the API. Ids may contain anything, so they are percent-encoded.

import { Problem } from "../drivers/problem.js";

const DOTS = new Set([".", ".."]); // they have another meaning in a path, and encoding does not change that

export function jobPath(id, rest = "") {
  if (DOTS.has(id)) {
    throw new Problem({
      title: "Cannot be shown",
      code: "address",
      detail: `the id ${id} cannot be part of an address. On the command line: millrace status ${id}`,
    });
  }
  return `/api/jobs/${encodeURIComponent(id)}${rest}`;
}

/** `id` is that of the flow's last job too, whose page shows more. */
export function flowPath(id) {
  return `/api/flows/${encodeURIComponent(id)}`;
}

export function queuePath(name, rest = "") {
  return `/api/queues/${named(name)}${rest}`;
}

export function schedulePath(name, rest = "") {
  return `/api/schedules/${named(name)}${rest}`;
}

/** The server accepts these with a prefix that no name in a path starts with. */
function named(name) {
  return DOTS.has(name) ? `~${name}` : encodeURIComponent(name);
}
