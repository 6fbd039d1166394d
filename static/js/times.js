// Keeps "3 min ago" and "in 12 s" true. The rule is the one of jobs/templatetags/pages.py and must agree with it.
"use strict";

window.Tickwork = window.Tickwork || {};

(() => {
  function span(seconds, withSeconds) {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min` + (withSeconds ? ` ${seconds % 60} s` : "");
    if (seconds < 86400) {
      const minutes = Math.floor((seconds % 3600) / 60);
      return `${Math.floor(seconds / 3600)} h` + (minutes ? ` ${minutes} min` : "");
    }
    const hours = Math.floor((seconds % 86400) / 3600);
    return `${Math.floor(seconds / 86400)} d` + (hours ? ` ${hours} h` : "");
  }

  function relative(at, now, style) {
    const seconds = Math.round((at - now) / 1000);
    const withSeconds = style === "countdown" || style === "age";
    if (style === "age") return span(Math.max(-seconds, 0), withSeconds);
    if (Math.abs(seconds) < 1) return "now";
    if (Math.abs(seconds) >= 30 * 86400) return new Date(at).toISOString().slice(0, 10);
    const text = span(Math.abs(seconds), withSeconds);
    return seconds > 0 ? `in ${text}` : `${text} ago`;
  }

  function tick() {
    const now = Date.now();
    for (const element of document.querySelectorAll("time[data-when]")) {
      const at = Date.parse(element.dateTime);
      if (Number.isNaN(at)) continue;
      const text = relative(at, now, element.dataset.when);
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // Hovering shows the instant in UTC (from the server) and in the reader's own zone.
  document.addEventListener("mouseover", (event) => {
    const element = event.target.closest?.("time[data-when]");
    if (!element || element.title.includes("\n")) return;
    const local = new Date(element.dateTime);
    if (!Number.isNaN(local.getTime())) element.title += `\n${local.toLocaleString()} here`;
  });

  Tickwork.tickTimes = tick;
  setInterval(() => document.hidden || tick(), 1000);
  document.addEventListener("visibilitychange", () => document.hidden || tick());
})();
