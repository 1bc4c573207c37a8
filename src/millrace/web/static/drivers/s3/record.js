// A job's object: the record as stored in the bucket, with the defaults that the store leaves out.

import * as raw from "./raw_json.js";
import { JOB, SPEC } from "./tables.js";

/** The fields of a record; null if it has no job (any more). Large parts that are not read yet are in `data`. */
export function facts(value) {
  if (value === null) return null;
  const record = raw.fields(value);
  const text = record.get("job");
  if (text === undefined || text === "null") return null;
  const job = raw.fields(text);
  const given = JSON.parse(text);
  const spec = { ...SPEC, ...given.spec };
  const [payloadFormat, resultFormat = payloadFormat] = spec.serde.split("/");
  return {
    ...JOB,
    ...given,
    spec,
    id: spec.id,
    queue: spec.queue,
    task: spec.task,
    seq: raw.digits(job, "seq"),
    rev: raw.read(record, "rev", 0),
    filed: raw.read(record, "filed", ""),
    parents: raw.read(record, "parents", []),
    awaited: raw.read(record, "awaited", false),
    data: raw.read(record, "data", {}),
    payload: part(record.get("input"), given.spec.payload, payloadFormat),
    result: part(record.get("output"), given.result, resultFormat),
    progress: part(undefined, given.progress, "json"),
    log: part(undefined, given.log, "json"),
  };
}

/** Payload or result: {text} is JSON as it was written, {base64} what is not; null when there is none. */
function part(text, base64, serde) {
  if (text !== undefined && text !== "null") return { text };
  if (!base64) return null;
  if (serde === "json") {
    try {
      const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
      return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes) };
    } catch {
      return { base64 };
    }
  }
  return { base64 };
}

/** The same fields, with payload and result from separate objects. `missing` names those that do not exist. */
export async function whole(bucket, found) {
  const names = { input: "payload", output: "result" };
  const missing = [];
  const parts = await Promise.all(
    Object.entries(found.data ?? {}).map(async ([what, key]) => {
      try {
        const blob = await bucket.get(key);
        if (blob === null) missing.push(names[what]);
        return [names[what], blob && { text: blob.text }];
      } catch (error) {
        if (!(error instanceof TypeError)) throw error;
        return [names[what], { base64: null }]; // not text: some other serde
      }
    }),
  );
  return { ...found, ...Object.fromEntries(parts), missing };
}

/** The state as it is displayed. */
export function wordOf(job, now) {
  if (job.state !== "waiting") return job.state;
  if (job.blocked) return "blocked";
  if (job.available_at <= now) return "ready";
  return job.failures ? "retrying" : "scheduled";
}

/** A result past its retention counts as deleted, even if it has not been removed yet. */
export function withoutExpiredResult(job, now) {
  if (job.result_until === null || job.result_until > now) return job;
  const { output: _, ...data } = job.data;
  return { ...job, result: null, result_until: null, result_expired: true, data };
}

export function lineOf(job) {
  if (job.lane !== null) return `l:${job.lane}`;
  return job.spec.group === null || job.spec.hook ? null : `g:${job.spec.group}`;
}
