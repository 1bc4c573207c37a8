// The driver for a server: the HTTP API beside the page.
//
// If the server requires a token, the user is asked for it once. It is kept in this object only, until the page is
// closed, unless the user lets the tab store it.

import { parse } from "../core/json.js";
import { Problem, wasAborted } from "./problem.js";
import { messages } from "./sse.js";

const KEPT_AS = "millrace.token";
const COME_BACK = 2000;
const LIVED = 5000; // milliseconds; a stream that ends normally after that was only renewed by the server
const LOOKS = ["overview", "jobs", "dead", "queues", "pools", "workers", "schedules", "health", "events", "why", "diff",
  "dependents", "throughput", "ended", "flows"];
const ACTS = ["cancel", "replay", "archive", "bulk", "pause", "drain", "schedules:act"];
const RULES = ["settings", "delete", "obliterate", "schedules:remove", "audit"];
const BY_ROLE = { viewer: LOOKS, operator: [...LOOKS, ...ACTS], admin: [...LOOKS, ...ACTS, ...RULES] };

export async function open(base, ask) {
  const driver = new HttpDriver(base, ask);
  await driver.greet();
  return driver;
}

class HttpDriver {
  #base;
  #ask;
  #token = kept();
  #asking = null;
  #ahead = 0; // how far the server's clock is ahead of ours, in milliseconds

  constructor(base, ask) {
    this.#base = base;
    this.#ask = ask;
    this.can = new Set();
    this.shards = null;
    this.about = { label: "", leave: null };
  }

  async greet() {
    const { role, name } = await this.request("GET", "/api/me");
    this.can.clear(); // the page has a reference to this set
    for (const word of BY_ROLE[role] ?? LOOKS) this.can.add(word);
    this.about = {
      label: name === "local" ? `${role}, on this machine` : role,
      leave: this.#token ? () => this.#forget() : null,
    };
  }

  now() {
    return Date.now() + this.#ahead;
  }

  async request(method, path, { query = {}, body, signal } = {}) {
    const wanted = { method, signal, headers: {}, cache: "no-store", redirect: "error" };
    if (body !== undefined) {
      wanted.body = JSON.stringify(body);
      wanted.headers["content-type"] = "application/json";
    }
    const answer = await this.#fetch(this.#url(path, query), wanted);
    return this.#read(answer);
  }

  stream(path, onEvent) {
    const stopped = new AbortController();
    this.#follow(path, onEvent, stopped.signal);
    return () => stopped.abort();
  }

  #url(path, query) {
    const url = new URL(path.replace(/^\//, ""), this.#base);
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
      }
    }
    return url;
  }

  async #fetch(url, wanted) {
    for (;;) {
      const used = this.#token;
      if (used) wanted.headers.authorization = `Bearer ${used}`;
      let answer;
      try {
        answer = await fetch(url, wanted);
      } catch (error) {
        if (wasAborted(error)) throw error;
        throw new Problem({
          title: "No response",
          code: "unreachable",
          detail: "the server does not respond; this page tries again",
        });
      }
      this.#setClock(answer);
      if (answer.status !== 401) return answer;
      const problem = await answer.json().catch(() => ({}));
      if (problem.code !== "token") throw new Problem({ status: 401, ...problem });
      if (this.#token === used) await this.#signIn(Boolean(used));
    }
  }

  async #read(answer) {
    let value;
    try {
      value = parse(await answer.text());
    } catch (error) {
      if (wasAborted(error)) throw error;
      throw new Problem({ status: answer.status, code: "unreadable", detail: "the server's answer could not be read" });
    }
    // An error status with a result (409 of a cancel, 503 of health) has its own shape.
    if (!answer.ok && typeof value?.detail === "string") throw new Problem({ status: answer.status, ...value });
    return value;
  }

  /** Concurrent requests without a token share one dialog. */
  #signIn(wrong) {
    this.#asking ??= this.#askFor(wrong).finally(() => {
      this.#asking = null;
    });
    return this.#asking;
  }

  async #askFor(wrong) {
    const { token, keep } = await this.#ask({
      title: "This server requires a token",
      text: "Ask an administrator for it. What you may do depends on its role: viewer, operator or admin.",
      wrong: wrong ? "The server does not accept this token." : "",
      fields: [
        { name: "token", label: "Token", type: "password", required: true },
        { name: "keep", label: "Keep it until this tab is closed", type: "checkbox" },
      ],
      submit: "Sign in",
    });
    this.#token = token.trim();
    remember(keep ? this.#token : null);
    this.about = { ...this.about, leave: () => this.#forget() };
    if (this.can.size) this.greet().catch(() => {}); // another token may be of another role
  }

  #forget() {
    this.#token = null;
    remember(null);
    location.reload();
  }

  #setClock(answer) {
    const theirs = Date.parse(answer.headers.get("date") ?? "");
    // The header has whole seconds, so a difference within one is none.
    if (Number.isNaN(theirs)) return;
    const ahead = theirs + 500 - Date.now();
    this.#ahead = Math.abs(ahead) > 1500 ? ahead : 0;
  }

  async #follow(path, onEvent, signal) {
    let last = null;
    while (!signal.aborted) {
      let began = Infinity;
      try {
        const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
        const answer = await this.#fetch(
          this.#url(path, {}),
          { headers, signal, cache: "no-store", redirect: "error" },
        );
        if (answer.status === 400 || answer.status === 410) last = null; // the server no longer knows this cursor
        if (!answer.ok) throw await this.#read(answer).catch((problem) => problem);
        onEvent({ kind: "open", data: () => null });
        began = Date.now();
        for await (const message of messages(answer.body)) {
          if (message.id) last = message.id;
          if (message.kind) onEvent(message);
        }
        if (Date.now() - began > LIVED) continue;
      } catch (error) {
        if (signal.aborted) return;
      }
      onEvent({ kind: "cut", data: () => null });
      await new Promise((go) => setTimeout(go, COME_BACK));
    }
  }
}

function kept() {
  try {
    return sessionStorage.getItem(KEPT_AS);
  } catch {
    return null;
  }
}

function remember(token) {
  try {
    if (token) sessionStorage.setItem(KEPT_AS, token);
    else sessionStorage.removeItem(KEPT_AS);
  } catch {
    // without storage, the user is asked again after a reload
  }
}
