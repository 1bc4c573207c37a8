// Increasing numbers: a client that writes holds a writer number for a period (`writers/{number}.json`), and releases it
// (docs/decisions/0010; the rules of src/millrace/store/object/engine/numbers.py).
//
// A stamp is the bucket's millisecond times 2^20 plus a count, of which each writer number has a block of its own. One
// number is never lent to two for the same millisecond. So no two writers draw the same, and what happens to a job is
// numbered after what has happened to it.

import { writerKey } from "./layout.js";
import { refused } from "./problems.js";
import * as raw from "./raw_json.js";

const COUNT = 20n;
const BLOCK = 6n;
const WRITERS = 1 << Number(COUNT - BLOCK);
const LEASE = 60_000;
const MARGIN = 5_000; // after the end of a lease, during which its number is not taken over
const TRIES = 64;

/** Do something as a writer: `work(draw)`, where `await draw(now, ...after)` answers a stamp above all of those. */
export async function asWriter(objects, work) {
  let held = await taken(objects);
  let last = 0n;
  const draw = async (now, ...after) => {
    for (const one of after) if (BigInt(one) > last) last = BigInt(one);
    for (;;) {
      let milli = [BigInt(now), last >> COUNT, BigInt(held.start)].reduce((a, b) => (a > b ? a : b));
      let stamp = (milli << COUNT) | (BigInt(held.writer) << BLOCK);
      if (stamp <= last) {
        milli += 1n;
        stamp += 1n << COUNT;
      }
      if (milli < BigInt(held.until)) {
        last = stamp;
        return stamp;
      }
      await givenBack(objects, held, last);
      held = await taken(objects, Number(milli));
    }
  };
  try {
    return await work(draw);
  } finally {
    await givenBack(objects, held, last).catch(() => null); // then other clients can take it when its lease has expired
  }
}

async function givenBack(objects, { key, start, until }, last) {
  const seen = await objects.one(key);
  const kept = seen.value === null ? new Map() : raw.fields(seen.value);
  if (raw.read(kept, "until") !== until || raw.read(kept, "free", false)) return; // another client holds it by now
  await objects.commit([{ seen, value: record(Math.max(start, Number(last >> COUNT) + 1), true) }]);
}

/** Take a free writer number, for a while from now or `milli` on: {writer, start, until, key}. */
async function taken(objects, milli = 0) {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const writer = Math.floor(Math.random() * WRITERS);
    const key = writerKey(writer);
    const seen = await known(objects, key);
    const now = objects.bucket.clock.now();
    const kept = seen.value === null ? new Map() : raw.fields(seen.value);
    const start = raw.read(kept, "until", 0);
    if (!raw.read(kept, "free", seen.value === null) && start + MARGIN > now) continue;
    const until = Math.max(start, now, milli) + LEASE;
    const { done } = await objects.commit([{ seen, value: record(until, false) }]);
    if (done) return { writer, start, until, key };
  }
  throw refused(503, "crowded", "Too many clients are writing to this bucket. Try again.");
}

/** Uses a listing, because a GET of a missing object would log an error in the browser's console. */
async function known(objects, key) {
  const { keys } = await objects.bucket.list("writers/", key.slice(0, -".json".length), 1);
  return keys[0] === key ? objects.one(key) : { key, tag: null, value: null, envelope: null, lock: null };
}

const record = (until, free) => `{"until":${until},"free":${free}}`;
