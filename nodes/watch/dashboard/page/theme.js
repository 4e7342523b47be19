// Light, dark, or as the system says.

import { text } from "./dom.js";

const KEY = "swarm-theme";
const THEMES = ["auto", "light", "dark"];

export function startTheme(button) {
  let theme = localStorage.getItem(KEY);
  if (!THEMES.includes(theme)) theme = "auto";
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    text(button, `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(KEY, theme);
    apply();
  });
  apply();
}
