// JSON in pieces that are kept as they were written.
//
// Numbers of jobs have 61 bits, and payloads may contain anything: converting them to JavaScript values would change
// them. A record is therefore split into the texts of its fields, and unchanged fields are written back as they were.

const SPACE = /[\t\n\r ]*/y;
const PLAIN = /-?\d[\d.eE+-]*|true|false|null/y;

function after(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}

const skip = (text, at) => after(SPACE, text, at);

/** Where the text in quotation marks that begins here ends: without a regular expression, since it may be megabytes long. */
function quoted(text, at) {
  if (text[at] !== '"') throw new SyntaxError("this is not JSON");
  for (let end = text.indexOf('"', at + 1); end > 0; end = text.indexOf('"', end + 1)) {
    let before = end;
    while (text[before - 1] === "\\") before -= 1;
    if ((end - before) % 2 === 0) return end + 1;
  }
  throw new SyntaxError("this is not JSON");
}

/** Where the value that begins here ends. */
function endOf(text, at) {
  let depth = 0;
  for (;;) {
    at = skip(text, at);
    const sign = text[at];
    if (sign === "{" || sign === "[") {
      depth += 1;
      at += 1;
    } else if (sign === "}" || sign === "]") {
      depth -= 1;
      at += 1;
    } else if (sign === "," || sign === ":") {
      at += 1;
    } else {
      at = sign === '"' ? quoted(text, at) : after(PLAIN, text, at);
      if (at < 0) throw new SyntaxError("this is not JSON");
    }
    if (depth === 0) return at;
    if (depth < 0) throw new SyntaxError("this is not JSON");
  }
}

/** The fields of an object, by name, each as its text. */
export function fields(text) {
  const found = new Map();
  let at = skip(text, 0);
  if (text[at] !== "{") throw new SyntaxError("this is no JSON object");
  at = skip(text, at + 1);
  while (text[at] !== "}") {
    const colon = quoted(text, at);
    const name = JSON.parse(text.slice(at, colon));
    at = skip(text, colon);
    if (text[at] !== ":") throw new SyntaxError("this is not JSON");
    at = skip(text, at + 1);
    const end = endOf(text, at);
    found.set(name, text.slice(at, end));
    at = skip(text, end);
    if (text[at] === ",") at = skip(text, at + 1);
    else if (text[at] !== "}") throw new SyntaxError("this is not JSON");
  }
  return found;
}

/** The items of an array, each as its text. */
export function items(text) {
  const found = [];
  let at = skip(text, 0);
  if (text[at] !== "[") throw new SyntaxError("this is no JSON array");
  at = skip(text, at + 1);
  while (text[at] !== "]") {
    const end = endOf(text, at);
    found.push(text.slice(at, end));
    at = skip(text, end);
    if (text[at] === ",") at = skip(text, at + 1);
    else if (text[at] !== "]") throw new SyntaxError("this is not JSON");
  }
  return found;
}

export function object(map) {
  return `{${Array.from(map, ([name, text]) => `${JSON.stringify(name)}:${text}`).join(",")}}`;
}

export const array = (texts) => `[${texts.join(",")}]`;

/** A value as text; null and undefined omit the field, as the store does. */
export function set(map, name, value) {
  if (value === null || value === undefined) map.delete(name);
  else map.set(name, typeof value === "bigint" ? String(value) : JSON.stringify(value));
}

export function read(map, name, otherwise = null) {
  const text = map.get(name);
  return text === undefined || text === "null" ? otherwise : JSON.parse(text);
}

/** A number as its digits, however large. */
export const digits = (map, name) => map.get(name) ?? "0";
