// Fingerprints of errors: jobs that died of the same cause have the same one (src/millrace/views/fingerprint.py).

import { sha256 } from "./sign.js";

const LENGTH = 10;
const EDGE = "[\\p{L}\\p{N}_]";
const VARIES = new RegExp(
  [
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", // a UUID
    "0x[0-9a-f]+", // an address
    `(?<!${EDGE})(?=[a-f]*\\p{Nd})[0-9a-f]{8,}(?!${EDGE})`, // a hash
    "'[^']*'|\"[^\"]*\"", // what was quoted
    "\\p{Nd}+", // any number
  ].join("|"),
  "giu",
);
const OUTER_SPACE = /^[\s\x1c-\x1f\x85]+|[\s\x1c-\x1f\x85]+$/g;

/** The error of a dead job in one line, without the parts that vary. */
export function cause(job) {
  const [line] = (job.error?.message ?? "").replace(OUTER_SPACE, "").split("\n", 1);
  const message = Array.from(line).slice(0, 500).join("");
  return `${job.error?.type ?? ""}: ${message.replace(VARIES, "…")}`.replace(/^[: ]+|[: ]+$/g, "");
}

export async function fingerprint(job) {
  return (await sha256([job.task, job.reason ?? "", cause(job)].join("\0"))).slice(0, LENGTH);
}
