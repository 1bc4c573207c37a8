// Notes at the bottom of the page: what was done, what failed, and what is about to be done and can still be undone.

import { draw, h } from "../core/dom.js";
import { icon } from "./icons.js";

const STAYS = 6000;
const GRACE = 8000; // milliseconds in which an action for many jobs can be undone
const MOST = 4;

let place = null;
let notes = [];
let number = 0;

export function placeNotes(element) {
  place = element;
}

export function note(text, kind = "done") {
  const one = add({ text, kind });
  if (kind !== "wrong") setTimeout(() => drop(one), STAYS);
}

/** Run the action after the grace period, unless it is undone. Closing the page undoes it too: nothing was sent yet. */
export function later(text, action) {
  const ends = Date.now() + GRACE;
  const left = () => `${text} in ${Math.max(0, Math.ceil((ends - Date.now()) / 1000))} s`;
  const one = add({ tick: left, kind: "later", action: ["Undo", () => undo()] });
  const timer = setTimeout(() => {
    drop(one);
    action();
  }, GRACE);
  function undo() {
    clearTimeout(timer);
    drop(one);
    note("Undone: nothing was changed");
  }
}

function add(one) {
  one.key = ++number;
  const waiting = notes.filter((other) => other.kind === "later");
  const rest = notes.filter((other) => other.kind !== "later").slice(-(MOST - 1));
  notes = [...waiting, ...rest, one];
  show();
  return one;
}

function drop(one) {
  notes = notes.filter((other) => other !== one);
  show();
}

function show() {
  draw(
    place,
    notes.map((one) =>
      h("div", { key: one.key, class: `note is-${one.kind}`, role: one.kind === "wrong" ? "alert" : "status" },
        one.tick ? h("span", { tick: one.tick }) : h("span", null, one.text),
        one.action ? h("button", { class: "main", onclick: one.action[1] }, one.action[0]) : null,
        one.kind === "later" ? null : h("button", { class: "bare", "aria-label": "Dismiss", onclick: () => drop(one) },
          icon("close"),
        ),
      ),
    ),
  );
}
