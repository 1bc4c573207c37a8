// All other fields of a job.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { clock, count, seconds } from "../core/text.js";
import { panel } from "./elements.js";

const LISTED = 20; // of the jobs that continue a job

/** `flow` is how far its flow is; null if that is not known. */
export function facts(app, job, flow) {
  const link = (id) => h("a", { key: id, href: to("jobs", [id]) }, id);
  const at = (iso) => (iso ? h("time", { datetime: iso, title: iso }, clock(iso)) : null);
  const known = [
    ["Enqueued", at(job.enqueued_at)],
    ["Due", at(job.available_at)],
    ["Started", at(job.started_at)],
    ["Finished", at(job.finished_at)],
    ["Expires", at(job.expires_at)],
    ["Priority", job.priority || null],
    ["Group", job.group ? h("a", { href: to("jobs", [], { group: job.group }) }, job.group) : null],
    ["Key", job.key ? h("a", { href: to("jobs", [], { key: job.key }) }, job.key) : null],
    ["Lane", job.lane],
    ["Flow", job.flow === null ? null : [link(job.flow), flow && ` ${count(flow.done)} of ${count(flow.total)} done`]],
    ["Enqueued by", job.enqueued_by === null ? null : link(job.enqueued_by)],
    ["Continued by", job.continued_by.length ? job.continued_by.slice(-LISTED).map((id) => h("div", { key: id }, link(id))) : null],
    ["Tags", job.tags?.length ? job.tags.map((tag) => [h("a", { key: tag, href: to("jobs", [], { tag }) }, tag), " "]) : null],
    ["Attempts", count(job.attempt)],
    ["Failures", `${count(job.failures)}${job.max_attempts === null ? "" : ` of at most ${count(job.max_attempts)}`}`],
    ["Stalls", job.stalls || null],
    ["Snoozes", job.snoozes || null],
    ["Released", job.releases || null],
    ["Replays", job.replays || null],
    ["Timeout", job.timeout === null ? null : seconds(job.timeout)],
    ["Lease", job.lease === null ? null : seconds(job.lease)],
    ["Number", count(job.seq)],
    ["Generation", job.generation > 1 ? job.generation : null],
    ["Format", job.serde],
  ].filter(([, value]) => value !== null && value !== undefined);
  return panel(
    "Facts",
    { id: "facts" },
    h("dl", { class: "facts" },
      known.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))),
    ),
  );
}
