// Light or dark theme: the system's setting, unless the user chooses one.

export const THEMES = ["auto", "light", "dark"];
const KEPT_AS = "millrace.theme";

export function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

export function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem(KEPT_AS, name);
  } catch {
    // not remembered
  }
}

export function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
}

export function restoreTheme() {
  try {
    const kept = localStorage.getItem(KEPT_AS);
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // as the system has it
  }
}
