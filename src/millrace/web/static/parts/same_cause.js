// How many other jobs died of the same cause. Finding them reads all dead jobs, so it is done once, in the background.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { count } from "../core/text.js";
import { wasAborted } from "../drivers/problem.js";

const MOST = 100;

export class SameCause {
  #app;
  #of = null; // the fingerprint that was searched for
  #found = null; // {others, more}

  constructor(app) {
    this.#app = app;
  }

  async look({ id, fingerprint }) {
    if (!fingerprint || this.#of === fingerprint) return;
    this.#of = fingerprint;
    this.#found = null;
    try {
      const query = { status: "dead", error: fingerprint, limit: MOST };
      const { jobs, cursor } = await this.#app.request("GET", "/api/jobs", { query });
      this.#found = { others: jobs.filter((job) => job.id !== id).length, more: cursor !== null };
      this.#app.draw();
    } catch (error) {
      if (!wasAborted(error) && !error.detail) throw error;
    }
  }

  view({ fingerprint }) {
    if (!fingerprint || !this.#found) return null;
    const { others, more } = this.#found;
    const href = to("jobs", [], { status: "dead", error: fingerprint });
    if (!others && !more) return h("span", { class: "hint" }, "No other job died for this cause");
    const one = others === 1 && !more;
    const words = `${count(others)}${more ? " or more" : ""} ${one ? "other job" : "other jobs"} died for the same cause`;
    return h("a", { href }, words);
  }
}
