// The refresh timer of the page: when the screen is loaded again. There is at most one timer and one load in progress;
// while the page is hidden, there is neither.

import { tickAll } from "./dom.js";

export const PACES = new Map([
  ["live", "live"],
  ["1", "every second"],
  ["5", "every 5 s"],
  ["10", "every 10 s"],
  ["off", "paused"],
]);
const SAFETY = 10_000; // live: the store may have changed without an event, so the screen is also refreshed by time
const AT_MOST_EVERY = 1_500; // live: the shortest time between two loads
const KEPT_AS = "millrace.pace";

export class RefreshTimer {
  #load;
  #listen; // (onEvent) → stop, or null
  #timer = null;
  #ticker = null;
  #under = null; // the AbortController of the current load
  #stopStream = null;
  #loadedAt = 0;
  #again = false;

  constructor(load, listen) {
    this.#load = load;
    this.#listen = listen;
    this.pace = chosen(listen !== null);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.start()));
  }

  start() {
    if (document.hidden) return;
    this.#ticker ??= setInterval(tickAll, 1000);
    this.#tune();
    this.now();
  }

  set(pace) {
    this.pace = pace;
    try {
      localStorage.setItem(KEPT_AS, pace);
    } catch {
      // not remembered
    }
    this.start();
  }

  /** Load immediately, and abort the current load. */
  async now() {
    clearTimeout(this.#timer);
    this.#under?.abort();
    const mine = new AbortController();
    const began = Date.now();
    this.#under = mine;
    this.#again = false;
    await this.#load(mine.signal);
    if (this.#under !== mine) return;
    this.#under = null;
    this.#loadedAt = Date.now();
    this.#plan(this.#again ? AT_MOST_EVERY : this.#pause(Date.now() - began));
  }

  /** An event arrived: load soon, but not too often. */
  hint() {
    if (this.pace !== "live" || document.hidden) return;
    if (this.#under) this.#again = true;
    else this.#plan(Math.max(0, this.#loadedAt + AT_MOST_EVERY - Date.now()));
  }

  /** The time of a load shortens the pause after it, so that the interval is kept; but there is always a pause. */
  #pause(took) {
    if (this.pace === "off") return null;
    const wanted = this.pace === "live" ? SAFETY : Number(this.pace) * 1000;
    return Math.max(wanted / 4, wanted - took);
  }

  #plan(after) {
    clearTimeout(this.#timer);
    this.#timer = after === null || document.hidden ? null : setTimeout(() => this.now(), after);
  }

  #tune() {
    const wanted = this.pace === "live" && this.#listen !== null;
    if (wanted && !this.#stopStream) this.#stopStream = this.#listen();
    if (!wanted && this.#stopStream) {
      this.#stopStream();
      this.#stopStream = null;
    }
  }

  #rest() {
    clearTimeout(this.#timer);
    clearInterval(this.#ticker);
    this.#ticker = null;
    this.#under?.abort();
    this.#under = null;
    this.#stopStream?.();
    this.#stopStream = null;
  }
}

function chosen(canListen) {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT_AS);
  } catch {
    // nothing is kept
  }
  if (PACES.has(kept) && (canListen || kept !== "live")) return kept;
  return canListen ? "live" : "5";
}
