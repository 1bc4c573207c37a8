// A small graph in columns, left to right: grandparents, parents, the job, its dependents. Boxes are links; the lines
// are drawn behind them.

import { h } from "../core/dom.js";
import { to } from "../core/route.js";
import { icon } from "./icons.js";

const BOX = { wide: 210, high: 44 };
const GAP = { x: 56, y: 12 };

export function graph(job, parents, grand, dependents) {
  const elders = [...new Map([...grand.values()].flat().map((one) => [one.id, one])).values()];
  const columns = [elders, parents, [job], dependents].filter((column) => column.length);
  const tallest = Math.max(...columns.map((column) => column.length));
  const high = tallest * (BOX.high + GAP.y) - GAP.y;
  const wide = columns.length * (BOX.wide + GAP.x) - GAP.x;
  const spots = new Map();
  columns.forEach((column, x) => {
    const top = (high - (column.length * (BOX.high + GAP.y) - GAP.y)) / 2;
    column.forEach((one, y) => spots.set(one.id, { x: x * (BOX.wide + GAP.x), y: top + y * (BOX.high + GAP.y), one }));
  });
  const lines = [
    ...[...grand].flatMap(([parent, theirs]) => theirs.map((one) => [one, parent])),
    ...parents.map((one) => [one, job.id]),
    ...dependents.map((one) => [job, one.id]),
  ];
  return h("div", { class: "scroll" },
    h("div", { class: "graph", style: { width: `${wide}px`, height: `${high}px` } },
      h("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "aria-hidden": "true" },
        lines.map(([from, to]) => line(spots.get(from.id), spots.get(to))),
      ),
      [...spots.values()].map((spot) => box(spot, job)),
    ),
  );
}

function line(from, to) {
  if (!from || !to) return null;
  const x1 = from.x + BOX.wide;
  const y1 = from.y + BOX.high / 2;
  const y2 = to.y + BOX.high / 2;
  const middle = (x1 + to.x) / 2;
  const open = from.one.state !== "completed";
  return h("path", { class: open ? "open" : "done", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${to.x} ${y2}` });
}

function box({ x, y, one }, job) {
  const here = one.id === job.id;
  return h(
    "a",
    {
      key: one.id,
      class: `node is-${one.state}`,
      href: to("jobs", [one.id]),
      "aria-current": here ? "true" : null,
      title: `${one.id}: ${one.state}`,
      style: { left: `${x}px`, top: `${y}px`, width: `${BOX.wide}px`, height: `${BOX.high}px` },
    },
    icon(one.state),
    h("span", { class: "words" }, h("span", { class: "task" }, one.task), h("span", { class: "id" }, one.id)),
    h("span", { class: "state-word" }, one.state),
  );
}
