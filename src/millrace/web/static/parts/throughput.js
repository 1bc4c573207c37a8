// Recent throughput.

const MINUTE = 60; // seconds

/** {step, points, minute: {completed, died}}: `minute` is the last minute, null if not known yet. The current step is not
    a point: it would look like a drop to zero. */
export async function flow(app, signal) {
  const { step, points, unfinished } = await app.request("GET", "/api/throughput", { signal });
  return { step, points, minute: lately([...points, unfinished], Math.round(MINUTE / step)) };
}

function lately(points, many) {
  if (points.length < many) return null;
  const sum = (name) => Math.round(points.slice(-many).reduce((total, point) => total + point[name], 0));
  return { completed: sum("completed"), died: sum("died") };
}
