// A chart over time: completed jobs as an area, dead ones as bars in front of it, on one scale. The drawing stretches
// to the available width; the labels are HTML around it, so they are not stretched.

import { h } from "../core/dom.js";
import { clock, count } from "../core/text.js";

const WIDE = 600;
const HIGH = 120;
const SCALE = [1, 2, 3, 4, 5, 6, 8];
const UNITS = [["s", 1], ["min", 60], ["h", 3600]]; // one for the whole axis

/** `points` are [{at, completed, died}] with counts, each of a step of `step` seconds, oldest first. */
export function chart(points, step) {
  const rates = points.map((point) => ({ completed: point.completed / step, died: point.died / step }));
  const highest = Math.max(...rates.map((point) => Math.max(point.completed, point.died)), 1 / step);
  const [unit, length] = UNITS.find(([, many]) => highest * many >= 1) ?? UNITS.at(-1);
  const top = nice(highest * length) / length;
  const mark = (value) => (value ? `${count(Math.round(value * length * 10) / 10)}/${unit}` : "0");
  const x = (n) => (WIDE * n) / Math.max(1, points.length - 1);
  const y = (value) => HIGH - HIGH * Math.min(1, value / top);
  const line = rates.map((point, n) => `${x(n).toFixed(1)} ${y(point.completed).toFixed(1)}`).join("L");
  const from = clock(points[0].at, false);
  const until = clock(points.at(-1).at, false);
  return h(
    "figure",
    {
      class: "chart",
      role: "img",
      "aria-label": `Completed and dead jobs from ${from} to ${until}; the scale ends at ${mark(top)}`,
    },
    h("div", { class: "marks", "aria-hidden": "true" }, [top, top / 2, 0].map((value) => h("span", null, mark(value)))),
    h("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0, top / 2, top].map((value) => h("line", { class: "grid", x1: 0, x2: WIDE, y1: y(value), y2: y(value) })),
      h("path", { class: "area", d: `M0 ${HIGH}L${line}L${WIDE} ${HIGH}Z` }),
      h("path", { class: "line", d: `M${line}` }),
      points.map((point, n) => h(
        "rect",
        { key: `step ${n}`, class: "step", x: x(n) - x(1) / 2, y: 0, width: x(1), height: HIGH },
        h("title", null, pointTitle(point, step)),
      )),
      rates.map((point, n) =>
        point.died > 0 ? h(
          "line",
          { key: n, class: "died", x1: x(n), x2: x(n), y1: HIGH, y2: Math.min(y(point.died), HIGH - 4) },
        ) : null,
      ),
    ),
    h("div", { class: "times", "aria-hidden": "true" },
      [
        0,
        1 / 3,
        2 / 3,
        1,
      ].map((share) => h("span", null, clock(points[Math.round(share * (points.length - 1))].at, false).slice(0, 5))),
    ),
  );
}

/** The tooltip of one step. */
function pointTitle(point, step) {
  const jobs = (number) => count(Math.round(number * 10) / 10);
  return `${clock(point.at, false)}: ${jobs(point.completed)} completed, ${jobs(point.died)} dead in ${step} s`;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * (SCALE.find((one) => one * power >= value) ?? 10);
}
