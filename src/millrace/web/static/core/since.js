// Times as filters: in the address stands what was meant ("midnight" is that of whoever looks), in a request an
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

/** Since when, in words. */
export function sinceWords(text) {
  return SINCE.find(([name]) => name === text)?.[1] ?? `since ${/^\d{4}-/.test(text) ? clock(text) : `${text} ago`}`;
}
