// Times as filters: the address has what was meant ("midnight" is in the viewer's time zone), a request an
// instant.

import { clock } from "./text.js";

export const SINCE = [
  ["15m", "the last 15 minutes"],
  ["1h", "the last hour"],
  ["midnight", "since midnight"],
  ["1d", "the last 24 hours"],
  ["7d", "the last 7 days"],
];

export function instantOf(text) {
  if (text !== "midnight") return text;
  const at = new Date();
  at.setHours(0, 0, 0, 0);
  return at.toISOString();
}

/** The start time, as text. */
export function sinceWords(text) {
  return SINCE.find(([name]) => name === text)?.[1] ?? `since ${/^\d{4}-/.test(text) ? clock(text) : `${text} ago`}`;
}
