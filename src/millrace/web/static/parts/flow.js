// How fast jobs go: from the server's series where there is one, else from how the counters grow while the page is
// open.

const STEP = 10; // seconds
const MOST = 90;

/** {load(overview, signal) → {step, points, now: {completed, died}}}: `now` in jobs per second. */
export function flow(app) {
  return app.can("throughput") ? asked(app) : observed(app);
}

function asked(app) {
  return {
    async load(_, signal) {
      const { step, points } = await app.request("GET", "/api/throughput", { signal });
      return { step, points, now: lately(points, step) };
    },
  };
}

function observed(app) {
  const points = [];
  let before = null;
  return {
    async load(all) {
      const at = app.now();
      if (before && at - before.at >= STEP * 1000) {
        const share = (STEP * 1000) / (at - before.at);
        points.push({
          at: new Date(at).toISOString(),
          completed: Math.max(0, all.processed - before.processed) * share,
          died: Math.max(0, all.died - before.died) * share,
        });
        if (points.length > MOST) points.shift();
      }
      if (!before || at - before.at >= STEP * 1000) before = { at, processed: all.processed, died: all.died };
      return { step: STEP, points: [...points], now: lately(points, STEP) };
    },
  };
}

/** The mean of the last half minute. */
function lately(points, step) {
  const last = points.slice(-Math.max(1, Math.round(30 / step)));
  const mean = (name) => last.reduce((sum, point) => sum + point[name], 0) / Math.max(1, last.length) / step;
  return { completed: mean("completed"), died: mean("died") };
}
