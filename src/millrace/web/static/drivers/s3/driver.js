// The driver for a bucket: the page sends requests to S3 directly, without a server.
//
// The address of the bucket is in `config.json` next to the page, written by `millrace init`; otherwise the user is
// asked. The user is asked for credentials, which are kept in memory until the page is closed.

import { wasAborted } from "../problem.js";
import { answered } from "./routes.js";
import { Store } from "./store.js";

const CAN = ["overview", "jobs", "dead", "queues", "pools", "workers", "schedules", "health", "why", "diff",
  "versions", "dependents", "throughput", "ended", "replay", "archive", "bulk"];

export async function open(base, ask) {
  const config = await configured(base);
  return new S3Driver(await signedIn(config, ask), (wrong) => signedIn(config, ask, wrong));
}

/** For a page with credentials: `config` as in config.json, credentials {accessKey, secretKey, sessionToken}. */
export async function connect(config, credentials) {
  return new S3Driver(await Store.open(config, credentials), null);
}

class S3Driver {
  #store;
  #signIn;
  #asking = null;

  constructor(store, signIn) {
    this.#store = store;
    this.#signIn = signIn;
    this.can = new Set(CAN);
    this.shards = store.layout.shards;
    this.about = { label: `${placed(store.config)}, without a server`, leave: () => location.reload() };
  }

  now() {
    return this.#store.now;
  }

  /** Requests sent so far, by method, which the owner of the bucket pays for. */
  get requests() {
    return { ...this.#store.bucket.requests };
  }

  async request(method, path, { query = {}, body, signal } = {}) {
    for (;;) {
      const store = this.#store;
      try {
        const answer = await answered(store, method, path, { query, body, signal });
        signal?.throwIfAborted();
        return answer;
      } catch (error) {
        if (wasAborted(error) || error.code !== "credentials" || this.#signIn === null) throw error;
        if (store === this.#store) await this.#again(error.detail);
      }
    }
  }

  /** Read four times as many keys from now on. */
  further() {
    this.#store.index.widen();
  }

  stream() {
    return null; // a bucket sends no events
  }

  /** Concurrent requests with expired credentials share one dialog. */
  #again(wrong) {
    this.#asking ??= this.#signIn(wrong)
      .then((store) => {
        this.#store = store;
      })
      .finally(() => {
        this.#asking = null;
      });
    return this.#asking;
  }
}

async function configured(base) {
  try {
    const answer = await fetch(new URL("config.json", base), { cache: "no-store" });
    const config = answer.ok ? await answer.json() : null;
    return typeof config?.bucket === "string" ? { ...config, ...from(base, config) } : null;
  } catch {
    return null;
  }
}

/** A page that is served by the bucket itself uses its own origin: that needs no CORS rule, and workers may use an
 * address of the bucket that browsers cannot reach. */
export function from(base, { bucket, prefix = "" }) {
  const url = new URL(base);
  const place = decodeURIComponent(url.pathname);
  if (url.host.includes(".s3-website")) return {}; // that serves pages, and nothing else
  if (place === `/${bucket}/${prefix}ui/`) return { endpoint: url.origin, addressing: "path" };
  if (place === `/${prefix}ui/` && url.host.startsWith(`${bucket}.`)) {
    return { endpoint: `${url.protocol}//${url.host.slice(bucket.length + 1)}`, addressing: "virtual" };
  }
  return {};
}

async function signedIn(config, ask, wrong = "") {
  let last = { region: "us-east-1" };
  for (;;) {
    const given = await ask({
      title: config ? `Open ${placed(config)}` : "Open a bucket",
      text: "This page has no server. It reads the bucket directly, and signs each request with these keys. They stay in the memory of this page. Use temporary keys with as few permissions as possible.",
      fields: [...(config ? [] : place(last)), ...KEYS],
      submit: "Open",
      wrong,
    });
    last = trimmed(given);
    const { accessKey, secretKey, sessionToken, ...named } = last;
    if (isLasting(accessKey) && !sessionToken) {
      wrong = "These keys are valid until they are revoked, which is too risky in a browser. Use temporary keys with a session token: aws sts get-session-token.";
      continue;
    }
    try {
      const where = config ?? { ...named, endpoint: named.endpoint || null, prefix: named.prefix && `${named.prefix.replace(/^\/+|\/+$/g, "")}/` };
      return await Store.open(where, { accessKey, secretKey, sessionToken: sessionToken || null });
    } catch (error) {
      if (!error.detail) throw error;
      wrong = error.detail;
    }
  }
}

/** AWS begins the keys of users with these letters, and temporary ones with others. */
const isLasting = (accessKey) => /^AKIA[A-Z0-9]{12,}$/.test(accessKey);

const KEYS = [
  { name: "accessKey", label: "Access key", required: true },
  { name: "secretKey", label: "Secret key", type: "password", required: true },
  { name: "sessionToken", label: "Session token", type: "password", hint: "of temporary keys" },
];

const place = ({ bucket, prefix, endpoint, region }) => [
  { name: "bucket", label: "Bucket", required: true, value: bucket },
  { name: "prefix", label: "Prefix", value: prefix, hint: "as in s3://bucket/prefix" },
  { name: "endpoint", label: "Endpoint", value: endpoint, hint: "empty for AWS" },
  { name: "region", label: "Region", value: region, required: true },
];

const trimmed = (given) => Object.fromEntries(Object.entries(given).map(([name, value]) => [name, value.trim()]));

const placed = ({ bucket, prefix }) => `s3://${bucket}/${prefix ?? ""}`.replace(/\/$/, "");
