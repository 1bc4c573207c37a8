// How fast jobs go: from the server's series where there is one, else from how the counters grow while the page is
// open.

const STEP = 10; // seconds
const MOST = 90;

/** {load(overview, signal) → {step, points, minute: {completed, died}}}: `minute` is the last one, null before one is
    known. The step that is not over yet is no point: it would look like a fall to nothing. */
export function flow(app) {
  return app.can("throughput") ? asked(app) : observed(app);
}

function asked(app) {
  return {
    async load(_, signal) {
      const { step, points, unfinished } = await app.request("GET", "/api/throughput", { signal });
      return { step, points, minute: lately([...points, unfinished], step) };
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
      return { step: STEP, points: [...points], minute: lately(points, STEP) };
    },
  };
}

function lately(points, step) {
  const last = points.slice(-Math.round(60 / step));
  if (last.length < Math.round(60 / step)) return null;
  const sum = (name) => Math.round(last.reduce((total, point) => total + point[name], 0));
  return { completed: sum("completed"), died: sum("died") };
}
