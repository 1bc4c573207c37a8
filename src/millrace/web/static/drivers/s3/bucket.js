// One bucket: signed requests, one attempt for writes, several for reads, and errors as messages.

import { ServerClock } from "./clock.js";
import { refusal, refused, silence } from "./problems.js";
import { signer, spelledPath, spelledQuery } from "./sign.js";

export const PAGE = 1_000;
const AT_ONCE = 12;
const ATTEMPTS = 4;
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const bytes = new TextEncoder();

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** The address of a bucket: {origin, host, base}; `base` is the path before its keys. */
export function placeOf({ bucket, endpoint = null, region = "us-east-1", addressing = null }) {
  const style = addressing ?? (endpoint ? "path" : "virtual");
  const url = new URL(endpoint ?? `https://s3.${region}.amazonaws.com`);
  if (style === "virtual") url.host = `${bucket}.${url.host}`;
  const folder = url.pathname.replace(/\/+$/, "");
  return { origin: url.origin, host: url.host, base: style === "virtual" ? folder : `${folder}/${spelledPath(bucket)}` };
}

export class Bucket {
  #signer;
  #place;
  #prefix;
  #free = AT_ONCE;
  #queue = [];
  #quoted = true; // whether tags are sent in quotation marks; Ceph requires them without

  constructor(config, credentials, clock = new ServerClock()) {
    if (!globalThis.crypto?.subtle) {
      throw refused(
        400,
        "insecure_page",
        "Browsers do not allow signatures on a page that was loaded over plain HTTP from another machine. Open it over HTTPS, or from localhost.",
      );
    }
    this.#place = placeOf(config);
    this.#prefix = config.prefix ?? "";
    this.#signer = signer({ region: "us-east-1", ...config, ...credentials });
    this.clock = clock;
    this.name = config.bucket;
    this.requests = {};
  }

  get foreign() {
    return this.#place.origin !== location.origin;
  }

  // objects

  /** {key, text, tag, at}; null if the object does not exist. */
  async get(key, { version = null, signal } = {}) {
    const reply = await this.#read(key, version ? { versionId: version } : {}, signal);
    if (reply === null) return null;
    const at = Date.parse(reply.headers.get("last-modified") ?? "");
    return { key, text: utf8.decode(await reply.arrayBuffer()), tag: tagOf(reply), at };
  }

  getMany(keys, options) {
    return Promise.all(keys.map((key) => this.get(key, options)));
  }

  /** Write unconditionally: for objects whose name no other client uses. */
  async put(key, text) {
    for (let attempt = 1; ; attempt++) {
      const reply = await this.#write(key, text, {});
      if (reply?.ok) return;
      if (attempt === ATTEMPTS) throw reply === null ? this.#silence() : await problemOf(reply, key);
      if (reply !== null && !PASSING.has(reply.status)) throw await problemOf(reply, key);
      await pause(100 * 2 ** attempt * Math.random());
    }
  }

  /** Write if the object still has this tag (null: if it does not exist).
   *
   * {won: tag}, or {lost: the current object, unsure}. Every body is unique, so after a lost response or a refusal the
   * object itself shows whether this write was done. `unsure`: it may have been done and overwritten. */
  async swap(key, text, tag) {
    let doubtful = false;
    for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
      if (attempt > 1) await pause(50 * 2 ** attempt * Math.random());
      const sent = this.#quoted ? `"${tag}"` : tag;
      const reply = await this.#write(key, text, tag === null ? { "if-none-match": "*" } : { "if-match": sent });
      if (reply?.ok) {
        const won = tagOf(reply);
        if (won !== null) return { won };
        throw hiddenTags();
      }
      if (reply?.status === 409) continue;
      if (reply !== null && !PASSING.has(reply.status) && reply.status !== 412 && reply.status !== 404) {
        throw await problemOf(reply, key);
      }
      doubtful ||= reply === null || PASSING.has(reply.status);
      const current = await this.get(key);
      if (current !== null && current.text === text) return { won: current.tag };
      if ((current?.tag ?? null) !== tag) return { lost: current, unsure: doubtful };
      if (reply?.status === 412) this.#quoted = !this.#quoted; // refused although the object is as expected
    }
    throw refused(
      503,
      "unwritten",
      `${key} ${doubtful ? "may have been written" : "was not written"}: the bucket did not confirm the write. Refresh, then repeat the action if necessary.`,
    );
  }

  /** Delete an object; false if that is not allowed. The store's sweep removes keys that are left behind. */
  async remove(key) {
    try {
      const reply = await this.#send("DELETE", key, {}, {}, null);
      return reply !== null && (reply.ok || reply.status === 404);
    } catch {
      return false;
    }
  }

  /** A link to one object, for a quarter of an hour, that works without credentials. */
  async link(key, seconds = 900) {
    const place = { ...this.#place, path: `${this.#place.base}/${spelledPath(this.#prefix + key)}` };
    return `${place.origin}${place.path}?${await this.#signer.link("GET", place, seconds, this.clock.now())}`;
  }

  // listings

  /** One page: {keys, more}. */
  async list(prefix, after = null, limit = PAGE, { signal } = {}) {
    const query = { "list-type": "2", "max-keys": limit, prefix: this.#prefix + prefix };
    if (after !== null) query["start-after"] = this.#prefix + after;
    const page = await this.#xml(query, signal);
    const cut = this.#prefix.length;
    const keys = texts(page, "Key").map((key) => key.slice(cut));
    return { keys, written: texts(page, "LastModified"), more: texts(page, "IsTruncated")[0] === "true" };
  }

  /** Every key under a prefix, at most `pages` pages, and when each was written: {keys, written, more}. */
  async listAll(prefix, { pages = Infinity, size = PAGE, after = null, signal } = {}) {
    const keys = [];
    const written = [];
    for (let page = 0; page < pages; page++) {
      const found = await this.list(prefix, after, size, { signal });
      keys.push(...found.keys);
      written.push(...found.written);
      if (!found.more || found.keys.length === 0) return { keys, written, more: false };
      after = found.keys.at(-1);
    }
    return { keys, written, more: true };
  }

  /** Versions of one object, newest first: {versions: [{id, at, size, deleted}], next}. */
  async versions(key, after = null, limit = 100, { signal } = {}) {
    const name = this.#prefix + key;
    const query = { versions: "", prefix: name, "max-keys": limit };
    if (after !== null) Object.assign(query, { "key-marker": name, "version-id-marker": after });
    const page = await this.#xml(query, signal);
    const found = [...page.documentElement.children]
      .filter((one) => ["Version", "DeleteMarker"].includes(one.localName) && texts(one, "Key")[0] === name)
      .map((one) => ({
        id: texts(one, "VersionId")[0],
        at: Date.parse(texts(one, "LastModified")[0]),
        size: Number(texts(one, "Size")[0] ?? 0),
        deleted: one.localName === "DeleteMarker",
        latest: texts(one, "IsLatest")[0] === "true",
      }));
    found.sort((a, b) => b.latest - a.latest || b.at - a.at);
    const more = texts(page, "IsTruncated")[0] === "true" && texts(page, "NextKeyMarker")[0] === name;
    return { versions: found, next: more ? texts(page, "NextVersionIdMarker")[0] : null };
  }

  /** "Enabled", "Suspended" or "" (never on). */
  async versioning() {
    return texts(await this.#xml({ versioning: "" }), "Status")[0] ?? "";
  }

  // one request

  async #xml(query, signal) {
    const reply = await this.#read(null, query, signal);
    if (reply === null) throw refusal(404, "NoSuchBucket", "", "");
    const page = new DOMParser().parseFromString(await reply.text(), "text/xml");
    if (page.querySelector("parsererror")) {
      throw refused(502, "store", `${this.#place.origin} does not respond like a bucket. Check the endpoint.`);
    }
    return page;
  }

  async #read(key, query, signal) {
    for (let attempt = 1; ; attempt++) {
      const reply = await this.#send("GET", key, query, {}, null, signal);
      if (reply?.ok) return reply;
      if (reply !== null && !PASSING.has(reply.status)) {
        const problem = await problemOf(reply, key);
        if (problem.more.said === "RequestTimeTooSkewed" && this.clock.known && attempt === 1) continue;
        if (reply.status === 404 && problem.code !== "bucket_missing") return null;
        throw problem;
      }
      if (attempt === ATTEMPTS) throw reply === null ? this.#silence() : await problemOf(reply, key);
      await pause(100 * 2 ** attempt * Math.random());
    }
  }

  #write(key, text, headers) {
    return this.#send("PUT", key, {}, headers, bytes.encode(text));
  }

  /** The response; null if there was none. */
  async #send(method, key, query, headers, body, signal) {
    const path = this.#place.base + (key === null ? "/" : `/${spelledPath(this.#prefix + key)}`);
    const place = { ...this.#place, path, query };
    await this.#turn();
    try {
      signal?.throwIfAborted();
      const sent = await this.#signer.headers(method, place, headers, body, this.clock.now());
      const asked = spelledQuery(query);
      const begun = this.clock.mark();
      this.requests[method] = (this.requests[method] ?? 0) + 1;
      const reply = await fetch(place.origin + path + (asked && `?${asked}`), {
        method,
        headers: sent,
        body,
        signal,
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
      this.clock.observe(Date.parse(reply.headers.get("date") ?? ""), begun, this.clock.mark());
      return reply;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return null;
    } finally {
      this.#done();
    }
  }

  async #turn() {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise((resolve) => this.#queue.push(resolve));
  }

  #done() {
    const next = this.#queue.shift();
    if (next) next();
    else this.#free += 1;
  }

  #silence() {
    return silence(this.#place.origin, this.foreign);
  }
}

const texts = (node, name) => Array.from(node.getElementsByTagNameNS("*", name), (one) => one.textContent);

/** A page of another origin sees a tag only where the bucket's CORS rule exposes it. */
function tagOf(reply) {
  const tag = reply.headers.get("etag");
  return tag ? tag.replace(/^W\//, "").replace(/^"|"$/g, "") : null;
}

export function hiddenTags() {
  return refused(
    502,
    "cors",
    `This page cannot read the ETags of the bucket (CORS), so it cannot change jobs safely. Run: millrace init --origin ${location.origin}`,
  );
}

async function problemOf(reply, key) {
  const said = await reply.text().catch(() => "");
  const code = /<Code>([^<]{1,100})<\/Code>/.exec(said)?.[1] ?? "";
  const message = /<Message>([^<]{1,300})<\/Message>/.exec(said)?.[1] ?? "";
  return refusal(reply.status, code, message, key);
}
