// Light, dark, or as the system says; the choice is kept in this browser.

import { storage } from "./storage.mjs";

const STORED = "triptych-lens-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** Make `button` go through the three; `onChange` is called after each change. */
export function startTheme(button, onChange) {
  const kept = storage("localStorage");
  let theme = kept.getItem(STORED);
  const apply = (chosen) => {
    theme = chosen in NEXT ? chosen : "auto";
    document.documentElement.dataset.theme = theme;
    button.querySelector("span").textContent = theme;
    kept.setItem(STORED, theme);
    onChange();
  };
  apply(theme);
  button.addEventListener("click", () => apply(NEXT[theme]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
}
