// Keeps the parts of a page current. A part is an element with data-live-url (its HTML) and data-live-topic (what it shows).
// The server says over a websocket which topics changed; the part is fetched again and morphed in place, so that focus,
// open details, ticked boxes and typed text stay. Without the socket the parts are fetched every few seconds instead.
//   data-live-every  least seconds between two fetches of the part (default 1; less while the page is new)
//   data-live-load   fetch it at once
"use strict";

(() => {
  const POLL_SECONDS = 5; // while the socket is down
  const SAFETY_SECONDS = 30; // also while it is up: the announcing process may have been killed before it could
  const FIRST_RETRY_MS = 500;
  const LONGEST_RETRY_MS = 8000; // while it is down the page polls anyway, which costs more than to knock
  const FRESH_MS = 5000; // so long after it was opened a page is fetched more often: somebody waits for what they asked for
  const FRESH_FACTOR = 0.3;

  const button = document.getElementById("live-state");
  const word = document.getElementById("live-word");
  const parts = new Map(); // element -> { lastAt, timer, busy, again }

  let socket = null;
  let isOpen = false;
  let isPaused = false;
  let retryMs = FIRST_RETRY_MS;
  let retryTimer = 0;

  // ── parts ─────────────────────────────────────────────────────────────────────────────────────

  for (const element of document.querySelectorAll("[data-live-url]")) {
    parts.set(element, { lastAt: "liveLoad" in element.dataset ? 0 : performance.now(), timer: 0, busy: false, again: false });
  }
  if (!parts.size || !button) return;

  const isStopped = () => isPaused || document.hidden;

  function ask(element) {
    const state = parts.get(element);
    if (isStopped() || state.timer) return;
    if (state.busy) {
      state.again = true;
      return;
    }
    const pace = performance.now() < FRESH_MS ? FRESH_FACTOR : 1;
    const least = 1000 * pace * Number(element.dataset.liveEvery || 1);
    const wait = state.lastAt ? Math.max(0, state.lastAt + least - performance.now()) : 0;
    state.timer = setTimeout(() => {
      state.timer = 0;
      if (!isStopped()) refresh(element, state);
    }, wait);
  }

  async function refresh(element, state) {
    state.busy = true;
    state.again = false;
    try {
      const answer = await fetch(element.dataset.liveUrl, {
        credentials: "same-origin",
        redirect: "manual",
        headers: { Accept: "text/html" },
      });
      if (answer.type === "opaqueredirect") {
        location.reload(); // logged out: the page itself leads to the login
        return;
      }
      if (answer.ok && !isPaused) morph(element, await answer.text());
    } catch {
      // offline; the next round asks again
    } finally {
      state.lastAt = performance.now();
      state.busy = false;
      if (state.again) ask(element);
    }
  }

  function morph(element, html) {
    const follow = [...element.querySelectorAll("[data-follow]")].filter(isAtEnd).map((log) => log.id);
    Idiomorph.morph(element, html, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      callbacks: {
        beforeAttributeUpdated: (name, node) => !(name === "open" || name === "checked" || (name === "title" && node.dataset?.when !== undefined)),
        beforeNodeMorphed: (node) => !isBeingEdited(node),
        beforeNodeRemoved: (node) => !isOpenMenu(node),
      },
    });
    for (const id of follow) scrollToEnd(document.getElementById(id));
    Tickwork.tickTimes?.();
  }

  // What somebody typed or unfolded is theirs until they are done with it.
  function isBeingEdited(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return false;
    if (node.matches("textarea, select, input:not([type=checkbox], [type=hidden])")) return true;
    return isOpenMenu(node);
  }

  const isOpenMenu = (node) => node.nodeType === Node.ELEMENT_NODE && node.matches("details.menu[open]");

  const isAtEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 30;
  const scrollToEnd = (log) => log && (log.scrollTop = log.scrollHeight);
  document.querySelectorAll("[data-follow]").forEach(scrollToEnd);

  const askAll = () => parts.forEach((_, element) => ask(element));

  // ── socket ────────────────────────────────────────────────────────────────────────────────────

  function connect() {
    clearTimeout(retryTimer);
    if (socket || isStopped()) return;
    const url = new URL("/ws/live/", location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(url);
    socket.addEventListener("open", () => {
      if (isStopped()) disconnect();
      else socket.send(JSON.stringify({ watch: topics() }));
    });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.watching) {
        const isFirst = !isOpen;
        isOpen = true;
        retryMs = FIRST_RETRY_MS;
        show();
        if (isFirst) askAll(); // what changed while nobody listened
      }
      if (message.changed) changed(new Set(message.changed));
    });
    socket.addEventListener("close", (event) => {
      socket = null;
      isOpen = false;
      show();
      if (event.code === 4401) {
        location.reload();
      } else if (!isStopped()) {
        retryTimer = setTimeout(connect, retryMs * (0.75 + Math.random() / 2));
        retryMs = Math.min(retryMs * 2, LONGEST_RETRY_MS);
      }
    });
  }

  const topics = () => [...new Set([...parts.keys()].map((element) => element.dataset.liveTopic).filter(Boolean))];

  function changed(names) {
    parts.forEach((_, element) => {
      if (names.has(element.dataset.liveTopic)) ask(element);
    });
  }

  function disconnect() {
    clearTimeout(retryTimer);
    if (socket?.readyState === WebSocket.OPEN) socket.close(); // one that is still connecting is closed when it has
  }

  // ── what the reader sees and decides ──────────────────────────────────────────────────────────

  function show() {
    const [state, text] = isPaused ? ["paused", "Paused"] : isOpen ? ["live", "Live"] : ["reconnecting", "Reconnecting"];
    button.dataset.state = state;
    button.setAttribute("aria-pressed", String(isPaused));
    if (word.textContent !== text) word.textContent = text;
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    settle();
  });

  function settle() {
    show();
    if (isStopped()) {
      disconnect();
      return;
    }
    retryMs = FIRST_RETRY_MS;
    connect();
    askAll();
  }

  document.addEventListener("visibilitychange", settle);
  addEventListener("online", settle);
  addEventListener("pageshow", (event) => event.persisted && settle());
  addEventListener("pagehide", disconnect);
  setInterval(() => isOpen || askAll(), POLL_SECONDS * 1000);
  setInterval(askAll, SAFETY_SECONDS * 1000);

  parts.forEach((state, element) => state.lastAt === 0 && ask(element));
  connect();
})();
