// Paths of the API. Ids may hold anything, so they are coded.

import { Problem } from "../drivers/problem.js";

export function jobPath(id, rest = "") {
  return `/api/jobs/${coded(id, `millrace status ${id}`)}${rest}`;
}

export function queuePath(name, rest = "") {
  return `/api/queues/${coded(name, "millrace queues")}${rest}`;
}

export function schedulePath(name, rest = "") {
  return `/api/schedules/${coded(name, "millrace schedules")}${rest}`;
}

/** Two names mean something else in a path, and no coding of them helps. */
function coded(name, command) {
  if (name === "." || name === "..") {
    throw new Problem({
      title: "Cannot be shown",
      code: "address",
      detail: `no address can hold the name ${name}. On the command line: ${command}`,
    });
  }
  return encodeURIComponent(name);
}
