// How values are shown: counts, durations, instants; and untrusted text, with control characters removed.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const counted = new Intl.NumberFormat("en");
const PICTURES = 0x2400; // Unicode has a picture for each control character

/** Replace control characters with their pictures; characters that change the text direction or are invisible are
    written as codes. */
export function visible(text) {
  // eslint-disable-next-line no-control-regex
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
    (found) => {
      const code = found.charCodeAt(0);
      if (code < 0x20) return String.fromCharCode(PICTURES + code);
      if (code === 0x7f) return "\u2421";
      return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
    },
  );
}

export function count(number) {
  return number === null || number === undefined ? "–" : counted.format(number);
}

/** 1 job, 2 jobs. */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A span of milliseconds in at most two units: 4.2 s, 3 m 20 s, 5 h 2 m, 3 d 4 h. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 0) return `−${span(-ms)}`;
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) return two(ms, MINUTE, "m", SECOND, "s");
  if (ms < DAY) return two(ms, HOUR, "h", MINUTE, "m");
  return two(ms, DAY, "d", HOUR, "h");
}

/** The same, where it is updated each second: without the tenths, which would only flicker. */
export function whole(ms) {
  if (ms < 0) return `−${whole(-ms)}`;
  return ms < MINUTE ? `${Math.floor(ms / SECOND)} s` : span(ms);
}

function two(ms, large, largeName, small, smallName) {
  const first = Math.floor(ms / large);
  const second = Math.floor((ms % large) / small);
  return second ? `${first} ${largeName} ${second} ${smallName}` : `${first} ${largeName}`;
}

/** Seconds, as the API gives them. */
export function seconds(value) {
  return value === null || value === undefined ? "–" : span(value * SECOND);
}

/** Seconds as they are typed: 90061.5 is 1d1h1m1s500ms. */
export function spanText(value) {
  let left = Math.round(value * SECOND);
  if (left === 0) return "0s";
  let text = "";
  for (const [unit, name] of [[DAY, "d"], [HOUR, "h"], [MINUTE, "m"], [SECOND, "s"], [1, "ms"]]) {
    if (left >= unit) text += `${Math.floor(left / unit)}${name}`;
    left %= unit;
  }
  return text;
}

export function instant(iso) {
  return iso === null || iso === undefined ? NaN : Date.parse(iso);
}

/** The local date and time, as exact as a person needs it. */
export function clock(iso, withDate = true) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "–";
  const pad = (number) => String(number).padStart(2, "0");
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (!withDate) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

/** A rate per second with two significant digits. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond >= 100) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 10) return `${perSecond.toFixed(0)}/s`;
  if (perSecond >= 1) return `${perSecond.toFixed(1)}/s`;
  if (perSecond === 0) return "0/s";
  const perMinute = perSecond * 60;
  if (perMinute >= 1) return `${perMinute.toFixed(perMinute >= 10 ? 0 : 1)}/min`;
  return `${(perMinute * 60).toFixed(0)}/h`;
}

/** The first line of a text, cut to fit a row. */
export function firstLine(text, most = 200) {
  const line = String(text ?? "").split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

export function errorText(error) {
  if (!error) return "";
  return error.message ? `${error.type}: ${firstLine(error.message)}` : error.type;
}
