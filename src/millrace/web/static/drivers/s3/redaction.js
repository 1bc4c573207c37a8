// Redaction: the rule of the HTTP API, the command line and the logs, as data (src/millrace/app/telemetry/redaction.py).

import { Exact } from "../../core/json.js";
import { HIDDEN } from "./secrets.js";
import { COUNTS, PHRASES } from "./tables.js";

const SHORTEST = 4;
const LONG = 5; // letters of a phrase that is looked for at the end of longer words: `token`, not `pin`
const DEEPEST = 100;

/** `userAPIKey` as "user api key". */
export function wordsOf(name) {
  return (name.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\p{Nd}+/gu) ?? []).join(" ").toLowerCase();
}

/** Phrases as whole words, in the plural too, and run together; long ones also as the end of a word. */
function anyOf(phrases, withinWords = false) {
  const choices = phrases.map(
    (phrase) => (withinWords && phrase.length >= LONG ? "" : "(?<![^ ])") + phrase.replaceAll(" ", " ?"),
  );
  return choices.length ? new RegExp(`(?:${choices.join("|")})s?(?![^ ])`, "g") : null;
}

export class Redaction {
  #pattern;
  #counts;
  #known = new Map();

  constructor(phrases = PHRASES) {
    this.phrases = [...new Set(phrases.map(wordsOf).filter(Boolean))].sort();
    this.#pattern = anyOf(this.phrases, true);
    this.#counts = anyOf(COUNTS.filter((phrase) => !this.phrases.includes(phrase)));
  }

  hides(name) {
    if (this.#pattern === null) return false;
    let known = this.#known.get(name);
    if (known === undefined) {
      const words = this.#counts ? wordsOf(name).replace(this.#counts, "") : wordsOf(name);
      known = words.search(this.#pattern) >= 0;
      if (this.#known.size < 10_000) this.#known.set(name, known);
    }
    return known;
  }

  /** The same data without what is hidden. */
  plain(value, depth = 0) {
    if (depth > DEEPEST) return HIDDEN;
    if (Array.isArray(value)) return value.map((inner) => this.plain(inner, depth + 1));
    if (value === null || typeof value !== "object" || value instanceof Exact) return value;
    const shown = Object.create(null); // a payload may have a field named __proto__
    for (const [name, inner] of Object.entries(value)) {
      shown[name] = inner !== null && this.hides(name) ? HIDDEN : this.plain(inner, depth + 1);
    }
    return shown;
  }

  /** The texts in hidden fields, the longest first: an error must not quote them. */
  secrets(...values) {
    const found = new Set();
    const look = (value, hidden, depth) => {
      if (depth > DEEPEST || value === null || typeof value === "boolean") return;
      if (Array.isArray(value)) value.forEach((inner) => look(inner, hidden, depth + 1));
      else if (typeof value === "object" && !(value instanceof Exact)) {
        for (const [name, inner] of Object.entries(value)) look(inner, hidden || this.hides(name), depth + 1);
      } else if (hidden && String(value).length >= SHORTEST) found.add(String(value));
    };
    values.forEach((value) => look(value, false, 0));
    return [...found].sort((a, b) => b.length - a.length);
  }
}
