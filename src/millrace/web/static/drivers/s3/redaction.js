// What nobody is shown: the rule of the HTTP API, the command line and the logs, as data (src/millrace/runtime/redaction.py).

import { Exact } from "../../core/json.js";
import { HIDDEN } from "./secrets.js";

export const USUAL = [
  "access key",
  "access keys",
  "api key",
  "api keys",
  "apikey",
  "apikeys",
  "auth",
  "authorization",
  "bearer",
  "card number",
  "card numbers",
  "cookie",
  "cookies",
  "credential",
  "credentials",
  "cvc",
  "cvv",
  "iban",
  "ibans",
  "passphrase",
  "passphrases",
  "passwd",
  "password",
  "passwords",
  "pin",
  "pins",
  "private key",
  "private keys",
  "pwd",
  "secret",
  "secrets",
  "session id",
  "session ids",
  "ssn",
  "token",
  "tokens",
];
// Of a language model, say: how many, not which.
export const COUNTS = [
  "completion tokens",
  "input tokens",
  "max tokens",
  "min tokens",
  "num tokens",
  "number of tokens",
  "output tokens",
  "prompt tokens",
  "tokens used",
  "total tokens",
  "used tokens",
];
const SHORTEST = 4;
const DEEPEST = 100;

/** `userAPIKey` as "user api key". */
export function wordsOf(name) {
  return (name.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\p{Nd}+/gu) ?? []).join(" ").toLowerCase();
}

export class Redaction {
  #phrases;
  #counts;
  #known = new Map();

  constructor(phrases = USUAL) {
    this.phrases = [...new Set(phrases.map(wordsOf).filter(Boolean))].sort();
    this.#phrases = this.phrases.map((phrase) => ` ${phrase} `);
    this.#counts = COUNTS.filter((phrase) => !this.phrases.includes(phrase)).map((phrase) => ` ${phrase} `);
  }

  hides(name) {
    let known = this.#known.get(name);
    if (known === undefined) {
      let words = ` ${wordsOf(name)} `;
      for (const phrase of this.#counts) words = words.replaceAll(phrase, "  ");
      known = this.#phrases.some((phrase) => words.includes(phrase));
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

  /** The texts that stand in hidden fields, the longest first: an error must not quote them. */
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
