// A BullMQ queue that another process drives: a line of JSON on the standard input is an
// order, one on the standard output its answer. ../bullmq.go sends the orders.
import { createInterface } from 'node:readline';
import { Queue, Worker } from 'bullmq';

const [host, port, name] = process.argv.slice(2);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
let worker;

const answer = (a) => process.stdout.write(JSON.stringify(a) + '\n');

// job makes one, from a task's number and when it is due (ms since 1970; 0 for at once).
function job(order, i) {
  const id = order.from + i;
  const due = order.due ? order.due[i] : 0;
  return {
    name: 't',
    data: { payload: 'x'.repeat(order.payload) },
    opts: { jobId: 'task-' + String(id).padStart(31, '0'), delay: due ? Math.max(0, due - Date.now()) : undefined },
  };
}

// fill adds all tasks of an order, in one call.
async function fill(order) {
  await queue.addBulk(Array.from({ length: order.count }, (_, i) => job(order, i)));
}

// add adds them one a call, from as many loops as the order says, and returns how long all took
// and each call, in ms.
async function add(order) {
  const times = new Array(order.count);
  let next = 0;
  const began = performance.now();
  await Promise.all(
    Array.from({ length: order.callers }, async () => {
      for (let i = next++; i < order.count; i = next++) {
        const at = performance.now();
        const { name, data, opts } = job(order, i);
        await queue.add(name, data, opts);
        times[i] = performance.now() - at;
      }
    }),
  );
  return { took: performance.now() - began, times };
}

// work starts a worker. It tells the numbers of the tasks that were handled, many in a line
// if they come fast.
function work(order) {
  let handled = [];
  const tell = () => {
    answer({ handled });
    handled = [];
  };
  worker = new Worker(
    name,
    async (job) => {
      if (handled.push(Number(job.id.slice(5))) === 1) setImmediate(tell);
    },
    { connection, concurrency: order.concurrency },
  );
  worker.on('error', (err) => answer({ error: String(err) }));
}

const orders = {
  fill,
  add,
  work,
  count: async () => ({ jobs: await queue.getJobCountByTypes('waiting', 'delayed') }),
  stop: () => worker.close(),
  clear: () => queue.obliterate({ force: true }),
};

await queue.waitUntilReady();
answer({ done: true });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const order = JSON.parse(line);
    answer({ done: true, ...(await orders[order.do](order)) });
  } catch (err) {
    answer({ done: true, error: String(err) });
  }
}
process.exit(0);
