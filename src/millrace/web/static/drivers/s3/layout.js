// The keys of all objects in the bucket, and what a key contains: the same names as in the store.

import { sha256 } from "./sign.js";

const PLAIN_ID = /^[a-z0-9-]{1,64}$/;
const UUID = /^[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}$/;
const PLAIN_WORD = /^[a-z0-9_-]+$/;
const LITERAL = /[a-z0-9_-]/;
const LONGEST_WORD = 48;
const LETTERS = { completed: "c", dead: "d", cancelled: "x" };
const STATES = { c: "completed", d: "dead", x: "cancelled" };
const bytes = new TextEncoder();

export const LAYOUT = "control/layout.json";
export const STORE = "control/store.json";
export const TASK_LIMITS = "control/tasks.json";

/** An id as a part of a key: itself where it can be one, else a hash. */
export async function nameOf(id) {
  return PLAIN_ID.test(id) ? id : `x${await sha256(id)}`;
}

/** A queue's or a task's name as a part of a key. */
export async function word(name) {
  if (PLAIN_WORD.test(name) && name.length <= LONGEST_WORD) return name;
  const said = Array.from(bytes.encode(name), (byte) => {
    const sign = String.fromCharCode(byte);
    return LITERAL.test(sign) ? sign : `=${byte.toString(16).padStart(2, "0")}`;
  }).join("");
  return said.length <= LONGEST_WORD ? said : `+${(await sha256(name)).slice(0, 40)}`;
}

export const minuteOf = (at) => String(Math.floor(Math.max(0, at) / 60_000)).padStart(8, "0");
const instant = (at) => String(at).padStart(13, "0");
const number = (text) => String(text).padStart(19, "0");
const millisecondOf = (stamp) => Number(BigInt(stamp) >> 20n);

export const feedKey = (stamp) => `feed/${minuteOf(millisecondOf(stamp))}/${number(stamp)}.json`;
export const dueKey = (at, stamp) => `due/${minuteOf(at)}/${instant(at)}.${number(stamp)}.json`;
export const writerKey = (writer) => `writers/${String(writer).padStart(5, "0")}.json`;
export const queueKey = async (name) => `control/queues/${await word(name)}.json`;
export const laneKey = async (queue, lane) => `lines/${await word(queue)}/l-${lane}.json`;

export class Layout {
  constructor(width = 1) {
    this.width = width;
    this.shards = width ? Array.from({ length: 16 ** width }, (_, n) => n.toString(16).padStart(width, "0")) : ["0"];
  }

  async shardOf(name) {
    if (!this.width) return "0";
    if (UUID.test(name)) return name.slice(0, this.width);
    if (name.length > 64) return name.slice(1, 1 + this.width); // a hash already
    return (await sha256(name)).slice(0, this.width);
  }

  async jobByName(name) {
    return `tasks/${await this.shardOf(name)}/${name}.json`;
  }

  async job(id) {
    return this.jobByName(await nameOf(id));
  }

  /** The index key of an open, waiting job. */
  async readyKey({ id, queue, task, priority, hook, seq, availableAt }, rev) {
    const name = await nameOf(id);
    const rest = `${instant(availableAt)}.${number(seq)}.${rev}.${hook ? "k" : "-"}.${await word(task)}.${name}`;
    const rank = (15 - priority).toString(16);
    return `ready/${await this.shardOf(name)}/${await word(queue)}/${rank}/${minuteOf(availableAt)}/${rest}`;
  }

  /** The index key of an ended job. */
  async doneKey({ id, queue, task, seq, state, finishedAt, archived }, rev) {
    const rest = `${instant(finishedAt)}.${number(seq)}.${rev}.${archived ? "a" : "-"}.${await word(task)}.${await nameOf(id)}`;
    return `done/${await word(queue)}/${LETTERS[state]}/${minuteOf(finishedAt)}/${rest}`;
  }
}

/** A job as described by its key in the index; null for a key that is not one. `seq` stays text: it has 61 bits. */
export function parsed(key) {
  const [family, ...parts] = key.split("/");
  const leaf = (parts.pop() ?? "").split(".");
  switch (family) {
    case "ready": {
      const [at, seq, rev, flags, task, name] = leaf;
      if (parts.length !== 4 || leaf.length !== 6) return null;
      const priority = 15 - parseInt(parts[2], 16);
      return entry(key, "waiting", parts[1], task, name, seq, rev, at, `r${flags}`, parts[0], priority);
    }
    case "held": {
      const [seq, at, rev, flags, task, name] = leaf;
      if (parts.length !== 4 || leaf.length !== 6) return null;
      return entry(key, "waiting", parts[0], task, name, seq, rev, at, flags, null, 15 - parseInt(parts[2], 16));
    }
    case "leases": {
      const [at, seq, rev, flags, queue, task, name] = leaf;
      if (parts.length !== 2 || leaf.length !== 7) return null;
      return entry(key, "running", queue, task, name, seq, rev, at, flags, parts[0], 0);
    }
    case "done": {
      const [at, seq, rev, flags, task, name] = leaf;
      if (parts.length !== 3 || leaf.length !== 6 || !STATES[parts[1]]) return null;
      return entry(key, STATES[parts[1]], parts[0], task, name, seq, rev, at, flags, null, 0);
    }
    default:
      return null;
  }
}

function entry(key, state, queue, task, name, seq, rev, at, flags, shard, priority) {
  seq = seq.replace(/^0+(?=.)/, "");
  return { key, state, queue, task, name, seq, rev: parseInt(rev, 10), at: Number(at), flags, shard, priority };
}
