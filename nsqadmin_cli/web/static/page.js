// Live updates: the server renders the part #live again, and this puts it in its place.
"use strict";
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("live-state");
  let source = null;
  let stopped = false;

  function say(text) {
    state.hidden = false;
    state.textContent = text;
  }

  // What has the focus, to find it again among the new elements.
  function place(element) {
    if (!element || element === live || !live.contains(element)) return null;
    const selector = element.matches("a") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : element.localName;
    const all = [...live.querySelectorAll(selector)];
    return { selector, index: all.indexOf(element), row: element.closest("tr")?.rowIndex };
  }

  function show(html) {
    const selection = getSelection();
    if (!selection.isCollapsed && live.contains(selection.anchorNode)) return; // somebody copies
    const focus = place(document.activeElement);
    const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    live.innerHTML = html; // of our own templates, which escape
    [...live.querySelectorAll(".scroll")].forEach((one, index) => { one.scrollLeft = scrolled[index] ?? 0; });
    if (focus) {
      const all = live.querySelectorAll(focus.selector);
      (all[focus.index] ?? all[0])?.focus({ preventScroll: true });
    }
    say("live");
  }

  function start() {
    if (source || stopped || document.hidden) return;
    source = new EventSource(`/live?at=${encodeURIComponent(location.pathname + location.search)}`);
    source.onmessage = (event) => show(JSON.parse(event.data));
    source.onerror = () => {
      say(source.readyState === EventSource.CLOSED ? "not live" : "connecting");
      if (source.readyState === EventSource.CLOSED) source = null;
    };
  }

  function stop() {
    if (source) source.close();
    source = null;
  }

  if (live && live.children.length && document.body.querySelector("time")) {
    start();
    // A browser has six connections to a host, so pages that nobody sees give theirs back.
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    addEventListener("pagehide", stop);
    addEventListener("pageshow", start);
  }

  const pages = { g: "/", n: "/nodes", l: "/lookup", d: "/doctor" };
  document.getElementById("keys").hidden = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key in pages) location.assign(pages[event.key]);
    else if (event.key === "/") {
      const find = document.getElementById("find");
      if (find) { event.preventDefault(); find.focus(); }
    } else if (event.key === "p" && live) {
      stopped = !stopped;
      if (stopped) { stop(); say("stopped"); } else start();
    }
  });
})();
