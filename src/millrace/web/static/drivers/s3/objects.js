// Objects that change, and transactions over them, by the store's own protocol (docs/decisions/0010).
//
// An object holds an envelope: a value, and what is needed to change several objects atomically. All but one are first
// written as pending; the swap of the last, the primary, commits and names the others. A client that finds a pending
// value reads the primary. Values are kept as text, and written back unchanged.

import { hiddenTags } from "./bucket.js";
import * as raw from "./raw_json.js";

const KNOWN = 20_000;

export function nonce(digits = 16) {
  const drawn = crypto.getRandomValues(new Uint8Array(Math.ceil(digits / 2)));
  return Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("").slice(0, digits);
}

export function sealed(value, { pending = null, commits = null } = {}) {
  const envelope = new Map([["nonce", JSON.stringify(nonce())]]);
  if (value !== null) envelope.set("value", value);
  if (pending !== null) envelope.set("pending", pending);
  if (commits !== null) envelope.set("commits", commits);
  return raw.object(envelope);
}

/** {value, pending: {tx, primary, next} or null, commits: Map of transaction to keys} */
export function opened(text) {
  const envelope = raw.fields(text);
  const locked = present(envelope.get("pending"));
  const pending = locked && raw.fields(locked);
  return {
    value: envelope.get("value") ?? null,
    pending: pending && {
      tx: raw.read(pending, "tx"),
      primary: raw.read(pending, "primary"),
      next: pending.get("next") ?? null,
    },
    commits: new Map(Object.entries(raw.read(envelope, "commits") ?? {})),
  };
}

const present = (text) => (text === undefined || text === "null" ? null : text);

export class Objects {
  #committed = new Set();

  constructor(bucket) {
    this.bucket = bucket;
  }

  // reading

  /** The committed value: {key, tag, value, envelope, lock}. `lock` is an undecided transaction. */
  async read(keys, options) {
    const primaries = new Map(); // one read for all objects with the same primary
    return Promise.all(keys.map(async (key) => this.#decided(key, await this.bucket.get(key, options), primaries)));
  }

  async one(key, options) {
    const [seen] = await this.read([key], options);
    return seen;
  }

  async #decided(key, blob, primaries) {
    for (;;) {
      if (blob === null) return { key, tag: null, value: null, envelope: null, lock: null };
      const envelope = opened(blob.text);
      const pending = envelope.pending;
      const seen = { key, tag: blob.tag, value: envelope.value, envelope, lock: null };
      if (pending === null) return seen;
      if (await this.#isDone(pending, primaries)) return { ...seen, value: pending.next };
      const again = await this.bucket.get(key); // it may have been committed and cleaned up meanwhile
      if ((again?.tag ?? null) === blob.tag) return { ...seen, lock: pending };
      blob = again;
      primaries = new Map();
    }
  }

  async #isDone({ tx, primary }, primaries = new Map()) {
    if (this.#committed.has(tx)) return true;
    if (!primaries.has(primary)) primaries.set(primary, this.bucket.get(primary));
    const blob = await primaries.get(primary);
    if (blob === null || !opened(blob.text).commits.has(tx)) return false;
    this.#note(tx);
    return true;
  }

  /** The committed value of a version of an object, given the next version above it (see versions.py). */
  async settled(envelope, above, isNewest, key) {
    const { pending, value } = envelope;
    if (pending === null) return { value, undecided: false };
    if (isNewest) {
      const seen = await this.one(key);
      above = seen.envelope;
      if (above?.pending?.tx === pending.tx) {
        return { value: seen.lock ? value : pending.next, undecided: seen.lock !== null };
      }
    }
    const takenBack = above !== null && above.value === value && value !== pending.next;
    return { value: takenBack ? value : pending.next, undecided: false };
  }

  // writing

  /** Several changes {seen, value}, all or nothing; the first one decides.
   *
   * {done: true}, or {done: false, lost: keys that had changed, unsure}. */
  async commit(changes) {
    if (changes.some(({ seen }) => seen.envelope !== null && seen.tag === null)) throw hiddenTags();
    for (const { seen } of changes) await this.#carryThrough(seen);
    const tx = nonce(18);
    const [first, ...rest] = changes;
    const written = await Promise.all(
      rest.map(({ seen, value }) => this.bucket.swap(seen.key, sealed(seen.value, { pending: lock(tx, first, value) }), seen.tag)),
    );
    const lost = rest.filter((_, place) => !written[place].won).map(({ seen }) => seen.key);
    let unsure = false;
    if (lost.length === 0) {
      const commits = JSON.stringify({ [tx]: rest.map(({ seen }) => seen.key) });
      const body = sealed(first.value, rest.length ? { commits } : {});
      const answer = await this.bucket.swap(first.seen.key, body, first.seen.tag);
      if (!answer.won && !(answer.lost && opened(answer.lost.text).commits.has(tx))) {
        lost.push(first.seen.key);
        unsure = answer.unsure;
      }
    }
    const done = lost.length === 0;
    if (done) this.#note(tx);
    await Promise.all(rest.map(({ seen, value }, place) => this.#tidy(seen, done ? value : seen.value, written[place])));
    return { done, lost, unsure };
  }

  /** After the decision every client sees the new value, whether this can be written or not. */
  async #tidy(seen, value, { won }) {
    if (won) await this.bucket.swap(seen.key, sealed(value), won).catch(() => null);
  }

  /** Before a primary is overwritten: write the values of the objects that it names. */
  async #carryThrough({ envelope }) {
    for (let [tx, keys] of envelope?.commits ?? []) {
      while (keys.length) {
        const blobs = await this.bucket.getMany(keys);
        const open = blobs.filter((blob) => blob !== null && opened(blob.text).pending?.tx === tx);
        const written = await Promise.all(
          open.map((blob) => this.bucket.swap(blob.key, sealed(opened(blob.text).pending.next), blob.tag)),
        );
        keys = open.filter((_, place) => !written[place].won).map((blob) => blob.key);
      }
    }
  }

  #note(tx) {
    this.#committed.add(tx);
    if (this.#committed.size > KNOWN) this.#committed.delete(this.#committed.values().next().value);
  }
}

function lock(tx, primary, next) {
  const pending = new Map([["tx", JSON.stringify(tx)], ["primary", JSON.stringify(primary.seen.key)]]);
  if (next !== null) pending.set("next", next);
  return raw.object(pending);
}
