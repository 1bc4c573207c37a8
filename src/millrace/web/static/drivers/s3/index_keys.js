// The index: keys contain queue, task, state, time and number of every job, so that a listing finds and counts them.
//
// A listing is cached for a time that grows with its cost, so that a page that refreshes every few seconds does not
// cost more for a bucket with many jobs.

import { minuteOf, parsed, word } from "./layout.js";

const LETTERS = { completed: "c", dead: "d", cancelled: "x" };
const WAITING = new Set(["waiting", "ready", "scheduled", "retrying", "blocked"]);
const LIMITS = {
  pages: 10, // of one listing; beyond that, only the newest keys are listed
  size: 1_000, // keys of a page
  enough: 2_000, // newest keys
};
const KEPT = 200; // listings
const HOUR = 3_600_000;
const CENTURY = 100 * 365 * 24 * HOUR;
const LEAST = 1_000;
const MOST = 60_000; // milliseconds that a listing is cached

export class Index {
  #kept = new Map();

  constructor(bucket, layout, limits = LIMITS) {
    this.bucket = bucket;
    this.layout = layout;
    this.limits = limits;
  }

  /** Limits keep a read cheap; the caller can ask for more. */
  widen() {
    const { pages, size, enough } = this.limits;
    this.limits = { pages: pages * 4, size, enough: enough * 4 };
    this.forget();
  }

  /** Read again the next time: this page has changed something. */
  forget() {
    this.#kept.clear();
  }

  /** Entries that may match: {entries, complete}. Each filter reduces what is listed. */
  async entries({ state = null, queue = null, shard = null } = {}) {
    const named = queue === null ? null : await word(queue);
    const shards = shard === null ? null : [shard];
    const asked = [];
    const waiting = state === null || WAITING.has(state);
    if (waiting) {
      if (named !== null) asked.push(...(shards ?? this.layout.shards).map((one) => this.#keys(`ready/${one}/${named}/`)));
      else asked.push(...(shards?.map((one) => `ready/${one}/`) ?? ["ready/"]).map((prefix) => this.#keys(prefix)));
      asked.push(this.#keys(named === null ? "held/" : `held/${named}/`));
    }
    if (state === null || state === "running") {
      asked.push(...(shards?.map((one) => `leases/${one}/`) ?? ["leases/"]).map((prefix) => this.#keys(prefix)));
    }
    if (state === null || state in LETTERS) asked.push(this.#done(named, LETTERS[state] ?? null));
    const found = await Promise.all(asked);
    let entries = found.flatMap(entriesOf).filter((one) => one !== null);
    if (named !== null) entries = entries.filter((one) => one.queue === named);
    if (shard !== null) entries = await this.#ofShard(entries, shard);
    return { entries, complete: found.every((one) => !one.more) };
  }

  async #ofShard(entries, shard) {
    const shards = await Promise.all(entries.map((one) => one.shard ?? this.layout.shardOf(one.name)));
    return entries.filter((_, place) => shards[place] === shard);
  }

  /** Whether an object with exactly this name exists. A GET of a missing one would log an error in the console. */
  async has(key, folder = key) {
    const { keys } = await this.#keys(folder);
    return keys.includes(key);
  }

  /** The words of all queues that were ever used. */
  async queues() {
    const { keys } = await this.#keys("control/queues/");
    return keys.map((key) => key.slice("control/queues/".length, -".json".length));
  }

  async #done(queue, letter) {
    const prefix = queue === null ? "done/" : letter === null ? `done/${queue}/` : `done/${queue}/${letter}/`;
    const found = await this.#keys(prefix);
    if (!found.more) return letter === null ? found : only(found, (key) => key.split("/")[2] === letter);
    const queues = queue === null ? await this.queues() : [queue];
    const letters = letter === null ? Object.values(LETTERS) : [letter];
    const parts = await Promise.all(queues.flatMap((one) => letters.map((state) => this.#newest(`done/${one}/${state}/`))));
    return { keys: parts.flatMap((one) => one.keys), written: parts.flatMap((one) => one.written), more: true };
  }

  /** Of more than can be listed, those that ended last. */
  async #newest(prefix) {
    for (let span = HOUR; ; span *= 12) {
      const since = `${prefix}${minuteOf(this.bucket.clock.now() - span)}`;
      const found = await this.#keys(prefix, since);
      if (found.keys.length >= this.limits.enough || span > CENTURY) return found;
    }
  }

  async #keys(prefix, after = null) {
    const place = after ?? prefix;
    const kept = this.#kept.get(place);
    if (kept && performance.now() < kept.until) return kept.found;
    const begun = performance.now();
    const { pages, size } = this.limits;
    const found = this.bucket.listAll(prefix, { pages, size, after });
    const entry = { found, until: Infinity };
    this.#kept.delete(place);
    this.#kept.set(place, entry); // as the newest
    if (this.#kept.size > KEPT) this.#kept.delete(this.#kept.keys().next().value);
    try {
      await found;
      const ended = performance.now();
      entry.until = ended + Math.min(MOST, Math.max(LEAST, 5 * (ended - begun)));
    } catch (error) {
      if (this.#kept.get(place) === entry) this.#kept.delete(place);
      throw error;
    }
    return found;
  }
}

/** The entries of keys, and when each was written, which was the last change of its job. */
function entriesOf({ keys, written }) {
  return keys.map((key, place) => {
    const entry = parsed(key);
    return entry && { ...entry, written: Date.parse(written[place]) || 0 };
  });
}

function only({ keys, written }, fits) {
  const places = [...keys.keys()].filter((place) => fits(keys[place]));
  return { keys: places.map((place) => keys[place]), written: places.map((place) => written[place]), more: false };
}

/** One entry per job: an older one is stale, and about to be deleted. */
export function newest(entries) {
  const best = new Map();
  for (const entry of entries) {
    const known = best.get(entry.seq);
    if (known === undefined || known.rev < entry.rev) best.set(entry.seq, entry);
  }
  return [...best.values()];
}
