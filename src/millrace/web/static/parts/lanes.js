// The lanes of a pool: each runs one job at a time, in order, so the longest lanes slow a pool down.

import { h } from "../core/dom.js";
import { count } from "../core/text.js";
import { pause } from "../screens/queues.js";
import { badge, bar, cell, table } from "./elements.js";
import { icon } from "./icons.js";

const MOST = 100;
const SHAPE = { processing: "running", idle: "waiting", paused: "paused" };

export function lanes(app, queue, all) {
  const fullest = Math.max(...all.map((lane) => lane.waiting), 1);
  const shown = all.length > MOST ? [...all].sort((a, b) => b.waiting + b.running - (
    a.waiting + a.running
  )).slice(0, MOST) : all;
  const columns = [
    { name: "Lane", class: "number" },
    { name: "State" },
    { name: "Waiting", class: "number" },
    { name: "" },
    { name: "Current", class: "number", title: "Seq of the job that runs or is in backoff" },
    { name: "Completed", class: "number" },
    { name: "Dead", class: "number" },
    { name: "" },
  ];
  return [
    table(columns, shown.map((lane) => row(app, queue, lane, fullest)), { label: `Lanes of ${queue}` }),
    all.length > MOST ? h("p", { class: "hint" }, `The ${MOST} fullest of ${count(all.length)} lanes.`) : null,
  ];
}

function row(app, queue, lane, fullest) {
  const held = lane.current ?? lane.retrying;
  return h("tr", { key: lane.lane, "data-row": true },
    cell("Lane", { class: "head number" }, lane.lane),
    cell(
      "State",
      { class: `lane-state is-${lane.state}` },
      icon(SHAPE[lane.state]),
      lane.state,
      lane.retrying ? badge("in backoff", "warn") : null,
    ),
    cell("Waiting", { class: `number${lane.waiting ? "" : " zero"}` }, count(lane.waiting)),
    h("td", { class: "bar-cell" }, bar(lane.waiting, fullest)),
    cell("Current", { class: "number" }, held === null || held === undefined ? "–" : `no. ${count(held)}`),
    cell("Completed", { class: "number" }, count(lane.processed)),
    cell("Dead", { class: `number${lane.dead ? "" : " zero"}` }, count(lane.dead)),
    h("td", { class: "actions" }, app.can("pause") ? pause(app, queue, lane.state === "paused", lane.lane) : null),
  );
}
