// The settings of a queue: the label, input and display of each.

import { h } from "../core/dom.js";
import { count, seconds, spanText } from "../core/text.js";

const NUMBER = "[0-9]+";
const SPAN = "([0-9]{1,6}(ms|s|m|h|d))+|[0-9]+(\\.[0-9]+)?";
export const SETTINGS = [
  {
    name: "max_running",
    label: "Maximum running jobs",
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
    label: "Maximum waiting jobs",
    none: "no limit",
    hint: "further ones are refused",
    pattern: NUMBER,
  },
  {
    name: "fair_share",
    label: "Fair share",
    none: "",
    hint: "0 to 1: the share of claims for the job that has been due the longest, regardless of priority",
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
  { name: "dead_cap", label: "Maximum dead jobs", none: "no limit", hint: "", pattern: NUMBER },
  { name: "dead_overflow", label: "When there are more dead jobs", none: "", options: ["evict", "archive", "reject"] },
  {
    name: "auto_retries",
    label: "Retry dead jobs automatically",
    none: "",
    hint: "how often; 0 is never",
    pattern: NUMBER,
    required: true,
  },
  {
    name: "auto_retry_delay",
    label: "Delay before an automatic retry",
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
