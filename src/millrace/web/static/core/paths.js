// Paths of the API. Ids may hold anything, so they are coded.

import { Problem } from "../drivers/problem.js";

/** Two ids mean something else in a path, and no coding of them helps. */
export function jobPath(id, rest = "") {
  if (id === "." || id === "..") {
    throw new Problem({
      title: "Cannot be shown",
      code: "address",
      detail: `no address can hold the id ${id}. On the command line: millrace status ${id}`,
    });
  }
  return `/api/jobs/${encodeURIComponent(id)}${rest}`;
}

export function queuePath(name, rest = "") {
  return `/api/queues/${encodeURIComponent(name)}${rest}`;
}

export function schedulePath(name, rest = "") {
  return `/api/schedules/${encodeURIComponent(name)}${rest}`;
}
