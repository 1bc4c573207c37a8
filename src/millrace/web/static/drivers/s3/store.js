// The store in a bucket, as the screens need it: records of jobs, the index, settings of queues, and what is hidden.

import { Bucket } from "./bucket.js";
import { Index } from "./index_keys.js";
import { LAYOUT, Layout, queueKey } from "./layout.js";
import { Objects } from "./objects.js";
import { refused } from "./problems.js";
import * as raw from "./raw_json.js";
import { facts, whole } from "./record.js";
import { Redaction } from "./redaction.js";

const KEPT = 3_000; // cached records
const SMALL = 8_000; // characters; longer records are not cached, because a page may be open for days
const KEPT_VERSIONS = 300;

export class Store {
  #versions = new Map(); // a version never changes
  #records = new Map(); // by index key, which changes with every write of a job that is not running

  /** Checks that there is a store, and reads its number of shards. */
  static async open(config, credentials) {
    const bucket = new Bucket(config, credentials);
    const objects = new Objects(bucket);
    const seen = await objects.one(LAYOUT);
    if (seen.value === null) {
      const where = `${config.bucket}/${config.prefix ?? ""}`;
      throw refused(404, "no_store", `There is no store at ${where}. Check the prefix, or create a store with \`millrace init\`.`);
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

  /** The jobs of index entries, in the same order; null for a job that was deleted. */
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

  /** A version of an object as it was written; null if it was deleted. */
  async version(key, id) {
    const name = `${key} ${id}`;
    const known = this.#versions.get(name);
    if (known) return known;
    const blob = await this.bucket.get(key, { version: id });
    if (blob !== null && id !== "null") keep(this.#versions, name, blob, KEPT_VERSIONS);
    return blob;
  }

  /** All queues that were ever used: [{name, settings, …}]. */
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

  /** The value of an object as text; null if it does not exist. */
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
