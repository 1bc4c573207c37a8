// Keys: g and a letter goes to a screen, / searches, j and k walk through rows, ? lists them all.

const PLAIN = new Set(["INPUT", "SELECT", "TEXTAREA"]);
const PATIENCE = 1500;

/** `places` maps a letter to what happens after g; `keys` what happens at once. */
export function listenToKeys(places, keys) {
  let waiting = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const inField = PLAIN.has(event.target.tagName) && event.target.type !== "checkbox";
    if (inField) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const now = event.timeStamp; // when the key was pressed, not when a busy page handles it
    const action = now - waiting < PATIENCE ? places[event.key] : keys[event.key];
    waiting = event.key === "g" ? now : -Infinity;
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** Move the focus to the next or previous row of the screen's list. */
export function walk(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  (next.querySelector("[data-first]") ?? next.querySelector("a, button, summary"))?.focus();
}
