// Rendering: h() describes what a screen should look like, and draw() changes the page to that with as few changes as
// possible. Nodes that stay keep their focus, their scroll position and what the user opened in them, however often a
// screen refreshes. Text is always inserted as text: there is no way to insert HTML.

import { visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "selected", "open", "indeterminate", "hidden"]);
const KEPT = Symbol("what was drawn into this node");
const HANDLERS = Symbol("handlers of this node");
const TICK = Symbol("text that changes with time");

/** Whether h() created it: data that looks like a node is text. */
class Drawn {
  constructor(tag, props, children) {
    Object.assign(this, { tag, props, key: props.key, children });
  }
}

export function h(tag, props, ...children) {
  return new Drawn(tag, props ?? {}, flat(children));
}

function flat(children) {
  const found = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true) continue;
    if (Array.isArray(child)) found.push(...flat(child));
    else if (child instanceof Drawn) found.push(child);
    else found.push({ text: visible(typeof child === "object" ? JSON.stringify(child) : String(child)) });
  }
  return found;
}

/** Change the children of `parent` to what is described. */
export function draw(parent, ...children) {
  reconcile(parent, flat(children), parent.namespaceURI === SVG);
}

function reconcile(parent, wanted, inSvg) {
  const before = parent[KEPT] ?? [];
  const keyed = new Map();
  const loose = [];
  for (const one of before) {
    if (one.drawn.key === undefined) loose.push(one);
    else if (keyed.has(one.drawn.key)) one.node.remove(); // two nodes with the same key: only the first is kept
    else keyed.set(one.drawn.key, one);
  }
  const after = [];
  let next = 0;
  for (const drawn of wanted) {
    let old;
    if (drawn.key !== undefined) {
      old = keyed.get(drawn.key);
      if (old && old.drawn.tag === drawn.tag) keyed.delete(drawn.key);
      else old = undefined;
    } else if (next < loose.length && loose[next].drawn.tag === drawn.tag) {
      old = loose[next];
      loose[next] = undefined;
      next += 1;
    } else if (next < loose.length) {
      next += 1; // another kind of node is here: remove it
    }
    if (old) {
      update(old.node, old.drawn, drawn, inSvg);
      after.push({ drawn, node: old.node });
    } else {
      after.push({ drawn, node: made(drawn, inSvg) });
    }
  }
  for (const one of keyed.values()) one.node.remove();
  for (const one of loose) one?.node.remove();
  let place = parent.firstChild;
  for (const { node } of after) {
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  parent[KEPT] = after;
}

function made(drawn, inSvg) {
  if (drawn.tag === undefined) return document.createTextNode(drawn.text);
  const svg = inSvg || drawn.tag === "svg";
  const node = svg ? document.createElementNS(SVG, drawn.tag) : document.createElement(drawn.tag);
  update(node, undefined, drawn, svg);
  drawn.props.made?.(node);
  return node;
}

function update(node, before, drawn, inSvg) {
  if (drawn.tag === undefined) {
    if (before.text !== drawn.text) node.data = drawn.text;
    return;
  }
  const old = before?.props ?? {};
  // Children come first: the value of a select is one of its options.
  if (drawn.props.tick) tick(node, drawn.props.tick);
  else reconcile(node, drawn.children, inSvg || drawn.tag === "svg");
  for (const name of Object.keys(old)) if (!(name in drawn.props)) set(node, name, old[name], undefined);
  for (const [name, value] of Object.entries(drawn.props)) {
    if (value !== old[name]) set(node, name, old[name], value);
  }
}

function set(node, name, before, value) {
  if (name === "key" || name === "made" || name === "tick") return;
  if (name.startsWith("on")) return listen(node, name.slice(2), value);
  if (name === "style") return styled(node, before ?? {}, value ?? {});
  if (AS_PROPERTY.has(name)) {
    const wanted = value ?? (name === "value" ? "" : false);
    if (node[name] !== wanted) node[name] = wanted;
    return;
  }
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : visible(String(value)));
}

function styled(node, before, wanted) {
  for (const name of Object.keys(before)) if (!(name in wanted)) node.style.removeProperty(name);
  for (const [name, value] of Object.entries(wanted)) {
    if (before[name] !== value) node.style.setProperty(name, value);
  }
}

function listen(node, kind, handler) {
  node[HANDLERS] ??= {};
  if (!(kind in node[HANDLERS])) node.addEventListener(kind, heard);
  node[HANDLERS][kind] = handler;
}

function heard(event) {
  return this[HANDLERS][event.type]?.call(this, event);
}

// ── text that changes with time ─────────────────────────────────────────────────────────────────

function tick(node, text) {
  node[TICK] = text;
  node.classList.add("ticks");
  ticked(node);
}

function ticked(node) {
  const text = visible(node[TICK]());
  if (node.textContent !== text) node.textContent = text;
}

/** Update every text that changes with time: ages, countdowns. */
export function tickAll() {
  for (const node of document.getElementsByClassName("ticks")) ticked(node);
}
