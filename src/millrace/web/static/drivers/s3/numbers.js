// Numbers that grow: who writes takes a writer's number first (`control/numbers.json`), and gives it back.
//
// A stamp is the bucket's millisecond times 2^20 plus a count, of which each writer has a block of its own. So no two
// writers draw the same, and what happens to a job is numbered after what has happened to it.

import { NUMBERS } from "./layout.js";
import { refused } from "./refusals.js";
import * as raw from "./raw.js";

const COUNT = 20n;
const BLOCK = 8n;
const WRITERS = 1 << Number(COUNT - BLOCK);
const TRIES = 20;

/** Do something as a writer: `work(draw)`, where `draw(now, ...after)` answers a stamp above all of those. */
export async function asWriter(objects, work) {
  let writer = 0;
  const kept = await change(objects, (numbers, taken) => {
    writer = free(taken);
    taken.set(String(writer), String(objects.bucket.clock.now()));
    return raw.digits(numbers, "high");
  });
  let last = BigInt(kept);
  const draw = (now, ...after) => {
    for (const one of after) if (BigInt(one) > last) last = BigInt(one);
    let milli = last >> COUNT > BigInt(now) ? last >> COUNT : BigInt(now);
    let stamp = (milli << COUNT) | (BigInt(writer) << BLOCK);
    while (stamp <= last) {
      milli += 1n;
      stamp = (milli << COUNT) | (BigInt(writer) << BLOCK);
    }
    last = stamp;
    return stamp;
  };
  try {
    return await work(draw);
  } finally {
    await change(objects, (numbers, taken) => {
      taken.delete(String(writer));
      if (BigInt(raw.digits(numbers, "high")) < last) numbers.set("high", String(last));
    }).catch(() => null); // a number that is not given back is one of somebody who crashed: there are 4,096
  }
}

/** The smallest number that is free; when none is, the one that was taken longest ago. */
function free(taken) {
  for (let number = 0; number < WRITERS; number++) if (!taken.has(String(number))) return number;
  return Number([...taken].reduce((a, b) => (Number(a[1]) <= Number(b[1]) ? a : b))[0]);
}

async function change(objects, make) {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const seen = await objects.one(NUMBERS);
    if (seen.value === null) throw refused(404, "no_store", "There is no store here. Check bucket and prefix.");
    const numbers = raw.fields(seen.value);
    const taken = raw.fields(numbers.get("taken") ?? "{}");
    const answer = make(numbers, taken);
    numbers.set("taken", raw.object(taken));
    const { done } = await objects.commit([{ seen, value: raw.object(numbers) }]);
    if (done) return answer;
  }
  throw refused(503, "crowded", "Too many others begin and end their work at this moment. Try again.");
}
