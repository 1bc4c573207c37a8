// Addresses: the part after # contains the screen, its object and its filters, so that every view can be linked to,
// and works the same from a server and from a bucket.

/** {name, rest, query}: `#/jobs/mail%2F7?tab=x` is name "jobs", rest ["mail/7"], query {tab: "x"}. */
export function read(hash) {
  const [path, search = ""] = split(hash.replace(/^#\/?/, ""));
  const parts = path.split("/").filter((part) => part !== "").map(decoded);
  return { name: parts[0] ?? "", rest: parts.slice(1), query: Object.fromEntries(new URLSearchParams(search)) };
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a screen; filters that are empty are left out. */
export function to(name, rest = [], query = {}) {
  const path = [name, ...rest].map(encodeURIComponent).join("/");
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(given).toString();
  return search ? `#/${path}?${search}` : `#/${path}`;
}
