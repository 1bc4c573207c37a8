// The page: chooses a driver, shows the screen that the address names, and keeps it fresh.

import { draw, h } from "./core/dom.js";
import { listenToKeys, walk } from "./core/keys.js";
import { RefreshTimer } from "./core/refresh_timer.js";
import { read, to } from "./core/route.js";
import { nextTheme, restoreTheme } from "./core/theme.js";
import { choose } from "./drivers/choose.js";
import { wasAborted } from "./drivers/problem.js";
import { ask } from "./parts/dialogs.js";
import { Attention } from "./parts/attention.js";
import { frame, showKeys } from "./parts/frame.js";
import { note, placeNotes } from "./parts/notes.js";
import { problem } from "./parts/problem.js";
import { SCREENS } from "./screens/all.js";

class App {
  constructor(driver) {
    this.driver = driver;
    this.connected = null; // whether live events are connected; null before the first attempt
    this.listeners = new Set(); // of screens that look at each event
    this.failure = null;
    this.timer = new RefreshTimer((signal) => this.#load(signal), driver.can.has("events") ? () => this.#listen() : null);
    this.started = false;
    this.now = () => this.driver.now();
    this.attention = new Attention(this);
    this.screens = SCREENS.filter((screen) => driver.can.has(screen.name));
    addEventListener("hashchange", () => this.#arrive());
    this.#arrive();
    this.started = true;
    this.timer.start();
  }

  request(method, path, options) {
    return this.driver.request(method, path, options);
  }

  can(what) {
    return this.driver.can.has(what);
  }

  /** Change the filters of this screen, in the address. */
  filter(changes, { replace = false } = {}) {
    const { name, rest, query } = read(location.hash); // what was just changed may not have been shown yet
    const address = to(name || this.route.name, rest, { ...query, ...changes });
    if (replace) {
      history.replaceState(null, "", address);
      this.#arrive();
    } else {
      location.hash = address;
    }
  }

  go(name, rest, query) {
    location.hash = to(name, rest, query);
  }

  refresh() {
    return this.timer.now();
  }

  /** Send a change, show the result in a note, and refresh the screen. */
  async act(method, path, body, said) {
    try {
      const answer = await this.request(method, path, { body });
      if (answer.done === false) note(`Not changed: the job is ${answer.answer.replaceAll("_", " ")}`, "wrong");
      else note(typeof said === "function" ? said(answer) : said);
      return answer;
    } catch (error) {
      note(error.detail ?? String(error), "wrong");
      return null;
    } finally {
      this.attention.forget();
      this.screen.changed?.();
      this.refresh();
    }
  }

  draw() {
    const body = this.shown
      ? this.screen.view(this.shown, this.route)
      : [
        h("h1", { key: "loading" }, this.kind.label),
        this.failure ? null : h("div", { class: "empty", key: "wait" }, h("p", null, "Loading …")),
      ];
    draw(
      document.getElementById("frame"),
      frame(this, [this.failure ? problem(this.failure, () => this.refresh()) : null, body]),
    );
    document.title = `${this.screen.title?.(this.route) ?? this.kind.label} · Millrace`;
  }

  #arrive() {
    const route = read(location.hash);
    const kind = this.screens.find((screen) => screen.name === route.name) ?? this.screens[0];
    const place = to(kind.name, route.rest);
    this.route = { ...route, name: kind.name };
    if (this.place !== place) {
      this.screen?.leave?.();
      this.place = place;
      this.kind = kind;
      this.screen = kind.make(this, this.route);
      this.shown = null;
      this.failure = null;
      this.menu = false;
      scrollTo(0, 0);
    }
    this.draw();
    if (this.started) this.refresh();
  }

  async #load(signal) {
    const { screen } = this;
    try {
      const loaded = await screen.load(signal, this.route);
      if (signal.aborted || screen !== this.screen) return;
      this.shown = loaded;
      this.failure = null;
    } catch (error) {
      if (wasAborted(error) || signal.aborted || screen !== this.screen) return;
      if (!error.detail) console.error(error);
      this.failure = error;
    }
    this.draw();
    if (this.failure) return;
    await this.attention.glance();
    if (!signal.aborted) this.draw();
  }

  #listen() {
    const stop = this.driver.stream("/api/events/stream", (event) => {
      if (event.kind === "open" || event.kind === "cut") {
        if (this.connected !== (event.kind === "open")) {
          this.connected = event.kind === "open";
          this.draw();
        }
        return;
      }
      for (const listener of this.listeners) listener(event);
      if (event.kind === "event") this.timer.hint();
    });
    return () => {
      stop?.();
      this.connected = null;
    };
  }
}

function keys(app) {
  const places = Object.fromEntries(app.screens.map((screen) => [screen.key, () => app.go(screen.name)]));
  listenToKeys(places, {
    "/": () => {
      const field = document.querySelector("[data-search]");
      if (field) field.focus();
      else app.go("jobs");
    },
    "?": () => showKeys(app),
    j: () => walk(1),
    k: () => walk(-1),
    r: () => app.refresh(),
    t: () => {
      nextTheme();
      app.draw();
    },
  });
}

async function begin() {
  restoreTheme();
  placeNotes(document.getElementById("notes"));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main")?.focus();
  });
  try {
    const driver = await choose(ask);
    document.getElementById("frame").replaceChildren(); // what was shown until now
    const app = new App(driver);
    keys(app);
  } catch (error) {
    if (!error.detail) console.error(error);
    document.getElementById("frame").replaceChildren();
    draw(
      document.getElementById("frame"),
      h("main", { id: "main", tabindex: "-1", class: "alone" }, problem(error, () => location.reload())),
    );
  }
}

begin();
