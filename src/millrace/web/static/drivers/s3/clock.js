// The bucket's clock, from the Date header of its responses: only this clock decides what is due or has expired.
//
// A Date has whole seconds, but each bounds the difference between the two clocks from both sides, and the bounds of
// several narrow each other down. Within them this machine's time of day is the best guess.

const DRIFT = 1 / 20_000;

export class ServerClock {
  #low = 0;
  #high = 0;
  #seen = null;
  #local;
  #wall;

  constructor(local = () => performance.now(), wall = () => Date.now()) {
    this.#local = local;
    this.#wall = wall;
  }

  /** The server read `date` (milliseconds, cut to whole seconds) between our times `sent` and `received`. */
  observe(date, sent, received) {
    if (!Number.isFinite(date)) return;
    let low = date - received;
    let high = date + 1_000 - sent;
    if (this.#seen !== null) {
      const aged = (received - this.#seen) * DRIFT;
      const narrow = [Math.max(low, this.#low - aged), Math.min(high, this.#high + aged)];
      if (narrow[0] <= narrow[1]) [low, high] = narrow; // otherwise a clock was set, and only the newest response counts
    }
    [this.#low, this.#high, this.#seen] = [low, high, received];
  }

  get known() {
    return this.#seen !== null;
  }

  mark() {
    return this.#local();
  }

  now() {
    if (this.#seen === null) return this.#wall();
    const local = this.#local();
    const guess = this.#wall() - local;
    return Math.floor(local + Math.min(Math.max(guess, this.#low), this.#high));
  }

  /** The difference between this machine's clock and the server's, in milliseconds; 0 if it cannot be measured. */
  get difference() {
    if (this.#seen === null) return 0;
    const guess = this.#wall() - this.#local();
    return Math.round(guess > this.#high ? guess - this.#high : guess < this.#low ? guess - this.#low : 0);
  }
}
