// Server-sent events out of a fetched body. EventSource cannot send a token; apart from that this is what it does.

import { parse } from "../core/json.js";

/** {kind, id, data()}: the data is parsed as JSON on demand, since most of many events are never read. */
export async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield message(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function message(block) {
  const fields = { event: "", id: "", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return { kind: fields.event, id: fields.id, data: () => parse(fields.data) };
}
