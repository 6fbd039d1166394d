// Light or dark: the system decides until somebody chooses. Loaded before the first paint, so that nothing flashes.
"use strict";

(() => {
  const KEY = "tickwork-theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden
    }
  }

  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const systemIsDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (systemIsDark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, root.dataset.theme);
    } catch {
      // then it lasts for this page
    }
  });
})();
