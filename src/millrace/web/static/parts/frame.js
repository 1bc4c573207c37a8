// The frame of every screen: navigation, how fresh the data is, and the theme.

import { h } from "../core/dom.js";
import { PACES } from "../core/refresh_timer.js";
import { to } from "../core/route.js";
import { nextTheme, theme } from "../core/theme.js";
import { sure } from "./dialogs.js";
import { alarm } from "./attention.js";
import { icon } from "./icons.js";

const THEME_ICON = { auto: "auto", light: "sun", dark: "moon" };

export function frame(app, body) {
  const needed = app.can("health") ? app.attention.findings : [];
  return [
    h("header", { class: "top", key: "top" },
      h("a", { class: "brand", href: "#/" }, mark(), "Millrace"),
      h(
        "button",
        {
          class: "bare menu",
          "aria-label": "Menu",
          "aria-expanded": String(Boolean(app.menu)),
          "aria-controls": "nav",
          onclick: () => {
            app.menu = !app.menu;
            app.draw();
          },
        },
        icon("menu"),
        alarm(needed),
      ),
      h("div", { class: "tools" }, freshness(app), themeSwitch(app)),
    ),
    h("nav", { id: "nav", key: "nav", class: app.menu ? "opened" : "", "aria-label": "Screens" },
      h("ul", null, app.screens.map((screen) => entry(app, screen, needed))),
      h("footer", null, foot(app)),
    ),
    h("main", { id: "main", key: "main", tabindex: "-1", "aria-busy": String(app.shown === null && !app.failure) },
      body,
    ),
  ];
}

function entry(app, screen, needed) {
  const here = app.kind === screen;
  return h("li", { key: screen.name },
    h("a", { href: to(screen.name), "aria-current": here ? "page" : null, title: `g ${screen.key}` },
      screen.label,
      screen.name === "health" ? alarm(needed) : null,
    ),
  );
}

function freshness(app) {
  const { timer } = app;
  const paces = [...PACES].filter(([pace]) => pace !== "live" || app.can("events"));
  const kind = timer.pace === "off" ? "off" : app.failure || (
    timer.pace === "live" && app.connected === false
  ) ? "cut" : "on";
  const words = { off: "", cut: "No response", on: "" };
  return h("label", { class: `fresh is-${kind}` },
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("span", { class: "word" }, words[kind] ? `${words[kind]} · Updates` : "Updates"),
    h(
      "select",
      {
        "aria-label": "Updates: how often this page refreshes",
        value: timer.pace,
        onchange: (event) => timer.set(event.target.value),
      },
      paces.map(([pace, words]) => h("option", { key: pace, value: pace }, words)),
    ),
  );
}

function themeSwitch(app) {
  const turn = () => {
    nextTheme();
    app.draw();
  };
  const label = { auto: "System theme", light: "Light colours", dark: "Dark colours" }[theme()];
  return h("button", { class: "bare", title: `${label} (t)`, "aria-label": `${label}. Change`, onclick: turn },
    icon(THEME_ICON[theme()]),
  );
}

function foot(app) {
  const { label, leave } = app.driver.about;
  return [
    h("span", null, label),
    leave ? h("button", { class: "link", onclick: leave }, "Sign out") : null,
    h("button", { class: "link", onclick: () => showKeys(app) }, "Shortcuts"),
  ];
}

function mark() {
  return h("svg", { class: "mark", viewBox: "0 0 24 24", "aria-hidden": "true" },
    h("circle", { cx: 12, cy: 12, r: 9 }),
    h("path", { d: "M12 3v18M3 12h18M5.6 5.6l12.8 12.8M18.4 5.6L5.6 18.4" }),
    h("circle", { class: "hub", cx: 12, cy: 12, r: 2.6 }),
  );
}

export function showKeys(app) {
  const rows = [
    ...app.screens.map((screen) => [`g ${screen.key}`, screen.label]),
    ["/", "Search jobs"],
    ["j  k", "Next and previous row"],
    ["Enter", "Open the row"],
    ["r", "Refresh"],
    ["t", "Light, dark, or the system theme"],
    ["?", "This list"],
  ];
  const list = h("dl", { class: "keys" },
    rows.map(([key, words]) => [h("dt", null, h("kbd", null, key)), h("dd", null, words)]),
  );
  return sure({ title: "Shortcuts", details: list, submit: "Close" });
}
