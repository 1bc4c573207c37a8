// The settings of a queue: what each is called, how it is typed, and how it reads.

import { h } from "../core/dom.js";
import { count, seconds, spanText } from "../core/text.js";

const NUMBER = "[0-9]+";
const SPAN = "([0-9]{1,6}(ms|s|m|h|d))+|[0-9]+(\\.[0-9]+)?";
export const SETTINGS = [
  {
    name: "max_running",
    label: "Running at a time",
    none: "no limit",
    hint: "how many jobs of this queue may run at once, over all workers",
    pattern: NUMBER,
  },
  {
    name: "rate",
    label: "Starts per second",
    none: "no limit",
    hint: "such as 5 or 0.5",
    pattern: "[0-9]+(\\.[0-9]+)?",
  },
  {
    name: "burst",
    label: "Burst",
    none: "as the rate",
    hint: "how many may start at once after a pause",
    pattern: NUMBER,
  },
  {
    name: "max_depth",
    label: "Most waiting jobs",
    none: "no limit",
    hint: "further ones are refused",
    pattern: NUMBER,
  },
  {
    name: "fair_share",
    label: "Fair share",
    none: "",
    hint: "0 to 1: how much of the starts is shared evenly among groups",
    pattern: "[0-9]*\\.?[0-9]+",
    required: true,
  },
  {
    name: "keep_completed",
    label: "Completed jobs are kept for",
    none: "ever",
    hint: "such as 7d or 12h",
    pattern: SPAN,
    span: true,
  },
  { name: "keep_dead", label: "Dead jobs are kept for", none: "ever", hint: "such as 30d", pattern: SPAN, span: true },
  { name: "dead_cap", label: "Most dead jobs", none: "no limit", hint: "", pattern: NUMBER },
  { name: "dead_overflow", label: "When there are more dead jobs", none: "", options: ["evict", "archive", "reject"] },
  {
    name: "auto_retries",
    label: "Dead jobs come back by themselves",
    none: "",
    hint: "how often; 0 is never",
    pattern: NUMBER,
    required: true,
  },
  {
    name: "auto_retry_delay",
    label: "They come back after",
    none: "",
    hint: "such as 1h",
    pattern: SPAN,
    span: true,
    required: true,
  },
];

export function shown(one, value) {
  if (value === null || value === undefined) return h("span", { class: "none" }, one.none);
  return one.span ? seconds(value) : typeof value === "number" ? count(value) : value;
}

export function written(one, value) {
  if (value === null || value === undefined) return "";
  return one.span ? spanText(value) : String(value);
}

export function read(one, text) {
  if (text === "") return null;
  return one.options || (one.span && /[a-z]/.test(text)) ? text : Number(text);
}
