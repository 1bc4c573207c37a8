// Removes the values of a job's hidden fields from its errors: the rule of src/millrace/app/telemetry/redaction.py.
// tests/web/redaction.json has the cases for both.

import { Exact } from "../../core/json.js";

export const HIDDEN = "[redacted]";
const MOST = 200;
const LONGEST = 10_000; // of an error's text
const SHORTEST_PART = 3; // at a cut
const CUT_END = "\n… (cut)";
const CUT_HEAD = "… (cut)\n";

export class Secrets {
  #texts;
  #instead = null;
  #known = null;

  /** `texts` null: they are not known. */
  constructor(texts) {
    this.#texts = [...(texts ?? [])].sort((a, b) => b.length - a.length);
    if (texts === null) this.#instead = HIDDEN;
    else if (this.#texts.length > MOST) {
      this.#instead = `${HIDDEN} (the payload hides more than ${MOST} values: too many to look for in an error)`;
    }
  }

  get none() {
    return this.#instead === null && this.#texts.length === 0;
  }

  /** An error as it may be shown; where its texts cannot be searched, only its type. */
  failure(error) {
    if (error === null || error === undefined) return null;
    const { type, message = "", traceback = "" } = error;
    if (this.#instead !== null) return { type, message: this.#instead, traceback: "" };
    return { type, message: this.without(message), traceback: this.without(traceback) };
  }

  without(text) {
    if (this.none || !text) return text;
    if (this.#instead !== null) return this.#instead;
    let shown = "";
    let end = 0;
    for (const [start, stop] of merged(this.#found(text))) {
      shown += text.slice(end, start) + HIDDEN;
      end = stop;
    }
    return shown + text.slice(end);
  }

  /** Redacted data, with the values of hidden fields removed from all other texts. */
  within(value) {
    if (this.none || value === null || value instanceof Exact) return value;
    if (typeof value === "string") return this.without(value);
    if (Array.isArray(value)) return value.map((inner) => this.within(inner));
    if (typeof value !== "object") return value;
    const shown = Object.create(null);
    for (const [name, inner] of Object.entries(value)) shown[name] = this.within(inner);
    return shown;
  }

  #found(text) {
    const spans = [];
    for (const spelling of this.#spellings) {
      for (let at = text.indexOf(spelling); at >= 0; at = text.indexOf(spelling, at + spelling.length)) {
        spans.push([at, at + spelling.length]);
      }
    }
    if (text.endsWith(CUT_END)) {
      const end = text.length - CUT_END.length;
      for (const spelling of this.#spellings) {
        const least = spelling.slice(0, SHORTEST_PART);
        for (let at = Math.max(0, end - spelling.length); at + least.length <= end; at += 1) {
          if (!text.startsWith(least, at) || !spelling.startsWith(text.slice(at, end))) continue;
          spans.push([at, end]);
          break;
        }
      }
    }
    if (text.startsWith(CUT_HEAD)) {
      const start = CUT_HEAD.length;
      for (const spelling of this.#spellings) {
        for (let stop = Math.min(text.length, start + spelling.length); stop >= start + SHORTEST_PART; stop -= 1) {
          if (!spelling.endsWith(text.slice(start, stop))) continue;
          spans.push([start, stop]);
          break;
        }
      }
    }
    return spans;
  }

  get #spellings() {
    this.#known ??= [...new Set(this.#texts.flatMap(spellings))];
    return this.#known;
  }
}

/** A secret as text, and as repr, JSON and URLs encode it. */
function spellings(text) {
  if (text.length > LONGEST) return [...spellings(text.slice(0, LONGEST)), ...spellings(text.slice(-LONGEST))];
  if (/^[A-Za-z0-9_.~-]*$/.test(text)) return [text];
  const json = JSON.stringify(text).slice(1, -1);
  const whole = text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "?");
  const coded = encodeURIComponent(whole).replace(/[!'()*]/g, (one) => `%${hex(one, 2).toUpperCase()}`);
  return [
    text,
    quoted(text, text.includes("'") && !text.includes('"')),
    quoted(text, false),
    json,
    json.replace(/[^ -~]/g, (one) => `\\u${hex(one, 4)}`),
    coded.replaceAll("%2F", "/"),
    coded,
    coded.replaceAll("%20", "+"),
  ];
}

/** Inside the quotes of Python's repr; `twice`: these are double ones. */
function quoted(text, twice) {
  const short = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "'": twice ? "'" : "\\'" };
  return text.replace(/[\\'\p{C}\p{Z}]/gu, (one) => {
    if (one === " ") return one;
    if (one in short) return short[one];
    const code = one.codePointAt(0);
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${hex(one, 4)}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

const hex = (one, digits) => one.charCodeAt(0).toString(16).padStart(digits, "0");

/** Merge overlapping matches, so that no part of two overlapping secrets is left. */
function merged(spans) {
  const found = [];
  for (const [start, stop] of spans.sort(([a, b], [c, d]) => a - c || b - d)) {
    const last = found.at(-1);
    if (last && start < last[1]) last[1] = Math.max(last[1], stop);
    else found.push([start, stop]);
  }
  return found;
}
