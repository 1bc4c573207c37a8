// The screens, in the order of the menu. A screen is made when its address is opened:
//   make(app, route) → {load(signal, route) → data, view(data, route) → what to draw, title?(route), leave?()}

import { makeDead } from "./dead.js";
import { makeHealth } from "./health.js";
import { makeJob } from "./job.js";
import { makeJobs } from "./jobs.js";
import { makeOverview } from "./overview.js";
import { makePools } from "./pools.js";
import { makeQueue } from "./queue.js";
import { makeQueues } from "./queues.js";
import { makeSchedules } from "./schedules.js";
import { makeWorkers } from "./workers.js";

const oneOr = (one, many) => (app, route) => (route.rest.length ? one : many)(app, route);

export const SCREENS = [
  { name: "overview", label: "Overview", key: "o", make: makeOverview },
  { name: "jobs", label: "Jobs", key: "j", make: oneOr(makeJob, makeJobs) },
  { name: "dead", label: "Dead letters", key: "d", make: makeDead },
  { name: "queues", label: "Queues", key: "q", make: oneOr(makeQueue, makeQueues) },
  { name: "pools", label: "Pools", key: "p", make: makePools },
  { name: "workers", label: "Workers", key: "w", make: makeWorkers },
  { name: "schedules", label: "Schedules", key: "s", make: makeSchedules },
  { name: "health", label: "Health", key: "h", make: makeHealth },
];
