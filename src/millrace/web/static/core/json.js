// JSON with exact integers. JavaScript rounds numbers above 2^53, and ids of other systems in a payload are often
// larger: the page must show what is stored.

const LONG = /\d{16}/; // no shorter number is rounded
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const MARK = `exact ${Math.random()}`; // so that no payload can contain it

/** An integer too large for a number: its digits. */
export class Exact {
  constructor(digits) {
    this.digits = digits;
  }

  toString() {
    return this.digits;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.digits) : this.digits;
  }
}

export function parse(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  let found = false;
  const marked = text.replace(TOKEN, (token) => {
    if (token.length < 16 || !/^-?\d+$/.test(token) || Number.isSafeInteger(Number(token))) return token;
    found = true;
    return `{"${MARK}":"${token}"}`;
  });
  return found ? JSON.parse(marked, (_, value) => (value?.[MARK] ? new Exact(value[MARK]) : value)) : JSON.parse(text);
}
