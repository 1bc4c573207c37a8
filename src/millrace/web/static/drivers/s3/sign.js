// Signature Version 4, as S3 requires it, with the browser's own cryptography.
//
// A path is encoded once and signed as it is sent. Secrets stay in this closure and are stored nowhere.

const ALGORITHM = "AWS4-HMAC-SHA256";
const UNSIGNED = "UNSIGNED-PAYLOAD";
const LONGEST = 7 * 86_400; // seconds; the longest validity of a link
const bytes = new TextEncoder();

export function spelled(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
}

export function spelledPath(path) {
  return path.split("/").map(spelled).join("/");
}

export function spelledQuery(query) {
  const pairs = Object.entries(query).map(([name, value]) => [spelled(name), spelled(String(value))]);
  pairs.sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : x > y ? 1 : 0));
  return pairs.map(([name, value]) => `${name}=${value}`).join("&");
}

export function hex(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function sha256(data) {
  return hex(await crypto.subtle.digest("SHA-256", typeof data === "string" ? bytes.encode(data) : data));
}

async function hmac(key, text) {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return crypto.subtle.sign("HMAC", imported, bytes.encode(text));
}

/** `at` is an instant in milliseconds; `place` is {host, path, query}, the path spelled already. */
export function signer({ accessKey, secretKey, sessionToken = null, region, service = "s3" }) {
  let kept = { day: "", key: null };

  async function keyOf(day) {
    if (kept.day !== day) {
      let key = bytes.encode(`AWS4${secretKey}`);
      for (const part of [day, region, service, "aws4_request"]) key = await hmac(key, part);
      kept = { day, key };
    }
    return kept.key;
  }

  async function signature(method, place, query, headers, payload, time) {
    const names = Object.keys(headers).sort();
    const canonical = [
      method,
      place.path,
      spelledQuery(query),
      ...names.map((name) => `${name}:${headers[name].trim().replace(/ +/g, " ")}`),
      "",
      names.join(";"),
      payload,
    ].join("\n");
    const scope = scopeOf(time);
    const text = [ALGORITHM, time, scope, await sha256(canonical)].join("\n");
    return hex(await hmac(await keyOf(time.slice(0, 8)), text));
  }

  const scopeOf = (time) => `${time.slice(0, 8)}/${region}/${service}/aws4_request`;

  return {
    /** The headers to send. `given` are those of the request itself, their names in lower case. */
    async headers(method, place, given, body, at) {
      const time = stamp(at);
      const payload = await sha256(body ?? "");
      const signed = { ...given, host: place.host, "x-amz-content-sha256": payload, "x-amz-date": time };
      if (sessionToken) signed["x-amz-security-token"] = sessionToken;
      const proof = await signature(method, place, place.query ?? {}, signed, payload, time);
      const names = Object.keys(signed).sort().join(";");
      const { host: _, ...sent } = signed; // the browser sets it
      const who = `Credential=${accessKey}/${scopeOf(time)}`;
      return { ...sent, authorization: `${ALGORITHM} ${who}, SignedHeaders=${names}, Signature=${proof}` };
    },

    /** The query of a link that needs no headers: valid for one object, for a limited time, for anyone who has it. */
    async link(method, place, seconds, at) {
      const time = stamp(at);
      const query = {
        ...place.query,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": `${accessKey}/${scopeOf(time)}`,
        "X-Amz-Date": time,
        "X-Amz-Expires": Math.min(Math.max(1, seconds), LONGEST),
        "X-Amz-SignedHeaders": "host",
      };
      if (sessionToken) query["X-Amz-Security-Token"] = sessionToken;
      const proof = await signature(method, place, query, { host: place.host }, UNSIGNED, time);
      return `${spelledQuery(query)}&X-Amz-Signature=${proof}`;
    },
  };
}

function stamp(at) {
  return new Date(at).toISOString().replace(/[-:]|\.\d{3}/g, "");
}
