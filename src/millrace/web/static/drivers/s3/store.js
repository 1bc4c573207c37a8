// The store in a bucket, as the screens need it: records of jobs, the index, settings of queues, and what is hidden.

import { Bucket } from "./bucket.js";
import { Index } from "./index_keys.js";
import { Layout, NUMBERS, queueKey } from "./layout.js";
import { Objects } from "./objects.js";
import { refused } from "./refusals.js";
import * as raw from "./raw.js";
import { facts, whole } from "./record.js";
import { Redaction } from "./redaction.js";

const KEPT = 3_000; // records that need not be read again
const SMALL = 8_000; // characters of one that is kept: a page may be open for days
const KEPT_VERSIONS = 300;

export class Store {
  #versions = new Map(); // a version never changes
  #records = new Map(); // by the key it is filed under: that changes whenever a job that does not run is written

  /** Proves that there is a store, and learns its number of shards. */
  static async open(config, credentials) {
    const bucket = new Bucket(config, credentials);
    const objects = new Objects(bucket);
    const seen = await objects.one(NUMBERS);
    if (seen.value === null) {
      const where = `${config.bucket}/${config.prefix ?? ""}`;
      throw refused(404, "no_store", `There is no store at ${where}. Check the prefix, or make one with \`millrace init\`.`);
    }
    return new Store(config, bucket, objects, raw.read(raw.fields(seen.value), "shard_digits") ?? 1);
  }

  constructor(config, bucket, objects, digits) {
    this.config = config;
    this.bucket = bucket;
    this.objects = objects;
    this.layout = new Layout(digits);
    this.index = new Index(bucket, this.layout);
    this.redaction = new Redaction(config.redact);
  }

  get now() {
    return this.bucket.clock.now();
  }

  /** The facts of a job; null when there is none. With `large`, payloads in objects of their own are read too. */
  async job(id, { large = false } = {}) {
    const found = facts((await this.objects.one(await this.layout.job(id))).value);
    return found === null || !large ? found : whole(this.bucket, found);
  }

  /** The jobs behind entries of the index, in their order; null for one that is gone. */
  jobs(entries) {
    return Promise.all(entries.map((entry) => this.#jobOf(entry)));
  }

  async #jobOf(entry) {
    const known = this.#records.get(entry.key);
    if (known) return known;
    const { value } = await this.objects.one(await this.layout.jobByName(entry.name));
    const found = facts(value);
    if (found !== null && value.length <= SMALL && found.state !== "running" && found.filed === entry.key) {
      keep(this.#records, entry.key, found, KEPT);
    }
    return found;
  }

  /** A version of an object as it was written; null when it is gone. */
  async version(key, id) {
    const name = `${key} ${id}`;
    const known = this.#versions.get(name);
    if (known) return known;
    const blob = await this.bucket.get(key, { version: id });
    if (blob !== null && id !== "null") keep(this.#versions, name, blob, KEPT_VERSIONS);
    return blob;
  }

  /** What is kept of queues: [{name, settings, …}], those that were ever used. */
  async queues() {
    const words = await this.index.queues();
    const seen = await this.objects.read(words.map((one) => `control/queues/${one}.json`));
    const values = seen.filter((one) => one.value !== null).map((one) => JSON.parse(one.value));
    return values.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  async queue(name) {
    const seen = await this.objects.one(await queueKey(name));
    return seen.value === null ? null : JSON.parse(seen.value);
  }

  /** The value of an object that may well not be there, as text; null then. */
  async setting(key, folder = key) {
    return (await this.index.has(key, folder)) ? (await this.objects.one(key)).value : null;
  }

  /** Every object under a prefix: their values. */
  async values(prefix) {
    const { keys } = await this.bucket.listAll(prefix);
    const seen = await this.objects.read(keys);
    return seen.filter((one) => one.value !== null).map((one) => one.value);
  }
}

function keep(known, name, value, most) {
  known.set(name, value);
  if (known.size > most) known.delete(known.keys().next().value);
}
