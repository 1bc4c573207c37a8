// Dependencies as a graph: what this job waits for on the left, what waits for it on the right. Two generations back
// are read, since the job that blocks is often a parent's parent.

import { h } from "../core/dom.js";
import { count } from "../core/text.js";
import { jobPath } from "../core/paths.js";
import { wasAborted } from "../drivers/problem.js";
import { panel } from "./elements.js";
import { graph } from "./graph.js";

const MOST = 24; // jobs in a column
const ASKED = 3; // parents that are due are asked why they do not run
const RARELY = 30_000; // milliseconds; dependents are searched for among all blocked jobs

/** The jobs that still wait for a job and, if it failed, those that died because of it, which is not before its end. */
function searches({ state, finished_at: ended }) {
  const failed = state === "dead" || state === "cancelled";
  return [{ status: "blocked" }, ...(failed ? [{ status: "dead", finished_from: ended }] : [])];
}

export class Dependencies {
  #app;
  parents = []; // each with `why`, in short, where it is due
  #dependents = { jobs: [], more: false };
  #lookedAt = 0;
  #grand = new Map(); // of each open parent, what it waits for

  constructor(app) {
    this.#app = app;
  }

  async load(job, signal) {
    const [parents, dependents] = await Promise.all([this.#listed(job.after, signal), this.#after(job, signal)]);
    this.parents = job.state === "blocked" ? await this.#explained(parents, signal) : parents;
    this.#dependents = dependents;
    this.#grand = await this.#beforeThem(parents.filter((parent) => parent.state === "blocked"), signal);
  }

  /** What each of them waits for, up to the size of a column; nothing if it cannot be read, so that the job itself is
      still shown. */
  async #beforeThem(parents, signal) {
    try {
      const elders = await this.#listed([...new Set(parents.flatMap((parent) => parent.after))], signal);
      const known = new Map(elders.map((one) => [one.id, one]));
      return new Map(parents.map(({ id, after }) => [id, after.filter((one) => known.has(one)).map((one) => known.get(one))]));
    } catch (error) {
      if (wasAborted(error)) throw error;
      return new Map();
    }
  }

  async #listed(ids, signal) {
    const asked = ids.slice(0, MOST);
    if (!asked.length) return [];
    const { jobs } = await this.#app.request("GET", "/api/jobs", { query: { id: asked }, signal });
    const known = new Map(jobs.map((job) => [job.id, job]));
    return asked.map((id) => known.get(id) ?? { id, state: "gone", task: "no longer kept" });
  }

  async #explained(parents, signal) {
    const due = this.#app.can("why") ? parents.filter((one) => one.state === "ready").slice(0, ASKED) : [];
    const why = new Map(await Promise.all(due.map(async ({ id }) => {
      const { reasons } = await this.#app.request("GET", jobPath(id, "/why"), { signal });
      return [id, reasons[0]?.text ?? ""];
    })));
    return parents.map((one) => ({ ...one, why: why.get(one.id) ?? "" }));
  }

  async #after(job, signal) {
    if (!this.#app.can("dependents") || Date.now() - this.#lookedAt < RARELY) return this.#dependents;
    const { queues } = await this.#app.request("GET", "/api/queues", { signal });
    const found = { jobs: [], more: false };
    for (const search of searches(job)) {
      if (!queues.some((one) => one[search.status] > 0) || found.jobs.length >= MOST) continue;
      const query = { ...search, after: job.id, limit: MOST - found.jobs.length };
      const { jobs, cursor } = await this.#app.request("GET", "/api/jobs", { query, signal });
      found.jobs.push(...jobs);
      found.more ||= cursor !== null;
    }
    this.#lookedAt = Date.now();
    return found;
  }

  view(job) {
    const { jobs: dependents, more } = this.#dependents;
    if (!job.after.length && !dependents.length) return null;
    const left = job.after.length - this.parents.length;
    const words = [
      left > 0 ? `${count(left)} more before it` : "",
      more ? "perhaps more after it" : "",
    ].filter(Boolean).join(", ");
    return panel("Dependencies", { id: "family", aside: words ? h("span", { class: "hint" }, words) : null },
      graph(job, this.parents, this.#grand, dependents));
  }
}
