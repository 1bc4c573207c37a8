// One measurement of BullMQ: node bullmq_peer.mjs MODULES VERB URL NUMBER OPTION. Run by bullmq_peer.py, which takes the
// time and the CPU between the lines "start" and "stop".
import { createRequire } from "node:module";

const [modules, verb, url, number, option] = process.argv.slice(2);
const { Queue, QueueEvents, Worker } = createRequire(`${modules}/`)("bullmq");
const where = new URL(url);
const connection = {
  host: where.hostname,
  port: Number(where.port),
  db: Number(where.pathname.slice(1)),
  maxRetriesPerRequest: null,
};
const TEXT = "All work and no play makes Jack a dull boy. ".repeat(2);
const NAME = "bench";
const BATCH = 1000;
const KEEP_NONE = { removeOnComplete: true };
const payload = (index) => ({ number: index, text: TEXT });

async function openQueue() {
  const queue = new Queue(NAME, { connection });
  await queue.waitUntilReady();
  return queue;
}

async function enqueue(jobs, callers) {
  const queue = await openQueue();
  let next = 0;
  const caller = async () => {
    while (next < jobs) {
      await queue.add("noop", payload(next++), KEEP_NONE);
    }
  };
  console.log("start");
  await Promise.all(Array.from({ length: callers }, caller));
  console.log("stop");
}

async function bulk(jobs) {
  const queue = await openQueue();
  console.log("start");
  for (let first = 0; first < jobs; first += BATCH) {
    const part = Array.from({ length: Math.min(BATCH, jobs - first) }, (_, index) => ({
      name: "noop",
      data: payload(first + index),
      opts: KEEP_NONE,
    }));
    await queue.addBulk(part);
  }
  console.log("stop");
}

async function run(jobs, concurrency) {
  let left = jobs;
  console.log("start");
  const worker = new Worker(NAME, async (job) => job.data.number, { connection, concurrency });
  await new Promise((resolve) => {
    worker.on("completed", () => --left || resolve());
  });
  console.log("stop");
}

async function serve(concurrency) {
  const worker = new Worker(NAME, async (job) => job.data.number, { connection, concurrency });
  await worker.waitUntilReady();
  console.log("ready");
  await new Promise(() => {});
}

async function call(times) {
  const queue = await openQueue();
  const events = new QueueEvents(NAME, { connection });
  await events.waitUntilReady();
  const found = [];
  for (let index = 0; index < times; index++) {
    const began = performance.now();
    const job = await queue.add("echo", payload(index));
    if ((await job.waitUntilFinished(events, 30000)) !== index) {
      throw new Error("a wrong result");
    }
    found.push((performance.now() - began) / 1000);
  }
  console.log(JSON.stringify(found));
}

const verbs = {
  enqueue: () => enqueue(Number(number), Number(option)),
  bulk: () => bulk(Number(number)),
  process: () => run(Number(number), Number(option)),
  serve: () => serve(Number(option)),
  call: () => call(Number(number)),
};
await verbs[verb]();
process.exit(0);
