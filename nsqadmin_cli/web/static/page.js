// Live updates: the server renders the part #live again, and this changes what differs in the document.
"use strict";
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("live-state");
  let source = null;
  let stopped = false;
  let pressed = false; // a pointer is down
  let waiting = null; // the latest part, as long as it cannot be shown

  function say(text) {
    state.hidden = false;
    if (state.textContent !== text) state.textContent = text;
  }

  // Nodes of one parent with the same signature are the same thing in another state.
  const signature = (node) => `${node.nodeName} ${node.dataset?.key ?? ""}`;

  // Gives `old` the content of `next`. Elements that both have stay the same ones, so that clicks, the focus and scroll
  // positions are not lost.
  function patch(old, next) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== next.data) old.data = next.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name); // what somebody has unfolded stays so
    }
    for (const { name, value } of next.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    patchChildren(old, next);
  }

  function patchChildren(old, next) {
    const left = new Map();
    for (const child of old.childNodes) {
      const same = left.get(signature(child));
      if (same) same.push(child);
      else left.set(signature(child), [child]);
    }
    const pairs = [...next.childNodes].map((child) => [child, left.get(signature(child))?.shift()]);
    for (const gone of left.values()) for (const child of gone) child.remove();
    let at = old.firstChild;
    for (const [child, kept] of pairs) {
      if (!kept) old.insertBefore(child, at);
      else if (kept === at) at = at.nextSibling;
      else old.insertBefore(kept, at);
      if (kept) patch(kept, child);
    }
  }

  // The value of one step of a chart, under the pointer or chosen by keys; only these are announced.
  const value = document.getElementById("main").appendChild(document.createElement("p"));
  value.id = "value";
  let chart = null;
  let at = 0;

  function tell(svg, index, announcing = "off") {
    chart = svg?.isConnected ? svg : null;
    const texts = chart?.dataset.values.split("|") ?? [];
    at = Math.max(0, Math.min(index, texts.length - 1));
    const seconds = (texts.length - 1 - at) * chart?.dataset.seconds;
    const ago = seconds ? `${seconds < 60 ? "" : `${Math.floor(seconds / 60)} min `}${seconds % 60} s ago` : "now";
    value.ariaLive = announcing;
    value.textContent = chart && `${texts[at] || "unknown"}, ${ago}`;
    if (!chart) return;
    const box = chart.getBoundingClientRect();
    value.className = at < texts.length / 2 ? "" : "left";
    value.style.left = `${scrollX + box.left + ((at + 0.5) * box.width) / texts.length}px`;
    value.style.top = `${scrollY + box.top}px`;
    value.style.height = `${box.height}px`;
  }

  function point({ target, clientX }) {
    const svg = target.closest?.(".chart svg");
    const box = svg?.getBoundingClientRect();
    if (svg) tell(svg, Math.floor(((clientX - box.left) / box.width) * svg.dataset.values.split("|").length));
    else if (chart !== document.activeElement) tell(null);
  }

  for (const name of ["pointermove", "pointerdown"]) addEventListener(name, point);
  addEventListener("focusin", ({ target }) => {
    if (target.matches(".chart svg:focus-visible")) tell(target, Infinity, "polite");
    else if (!target.matches(".chart svg")) tell(null);
  });

  function isSelected() {
    const selection = getSelection();
    return !selection.isCollapsed && selection.containsNode(live, true);
  }

  function show() {
    if (waiting === null || pressed) return;
    if (isSelected()) return say("waits while text is selected");
    const template = document.createElement("template");
    template.innerHTML = waiting; // of our own templates, which escape
    waiting = null;
    const focused = document.activeElement;
    patchChildren(live, template.content);
    if (chart) tell(chart, at);
    // A row that has been moved loses the focus.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    say("live");
  }

  function start() {
    if (source || stopped || document.hidden) return;
    source = new EventSource(location.pathname + location.search);
    source.onmessage = (event) => {
      waiting = JSON.parse(event.data);
      show();
    };
    source.onerror = () => {
      say(source.readyState === EventSource.CLOSED ? "not live" : "connecting");
      if (source.readyState === EventSource.CLOSED) source = null;
    };
  }

  function stop() {
    if (source) source.close();
    source = waiting = null;
  }

  if (live && live.children.length && document.body.querySelector("time")) {
    const release = () => {
      pressed = false;
      setTimeout(show); // after the click
    };
    addEventListener("pointerdown", () => { pressed = true; }, true);
    for (const name of ["pointerup", "pointercancel", "dragend"]) addEventListener(name, release, true);
    addEventListener("blur", (event) => { if (event.target === window) release(); });
    // A pointer that was released outside the window, or over a menu.
    addEventListener("pointermove", (event) => { if (pressed && !event.buttons) release(); }, true);
    document.addEventListener("selectionchange", () => { if (waiting !== null) show(); });
    start();
    // A browser has six connections to a host, so pages that nobody sees give theirs back.
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    addEventListener("pagehide", stop);
    addEventListener("pageshow", start);
  }

  document.documentElement.classList.add("js");
  addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const body = button.closest(".message").querySelector("pre");
    const say = (done) => {
      button.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    };
    if (navigator.clipboard) {
      navigator.clipboard.writeText(body.textContent).then(() => say(true), () => say(false));
    } else { // a page without TLS has none, but what is selected can be copied
      getSelection().selectAllChildren(body);
      say(document.execCommand("copy"));
      getSelection().empty();
    }
  });

  const pages = { g: "/", n: "/nodes", l: "/lookup", d: "/doctor" };
  document.getElementById("keys").hidden = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const svg = event.target.closest(".chart svg");
    const moved = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
    if (svg && moved !== undefined) {
      event.preventDefault();
      tell(svg, svg === chart ? moved : Infinity, "polite");
    } else if (svg && event.key === "Escape") tell(null);
    else if (event.key in pages) location.assign(document.documentElement.dataset.base + pages[event.key]);
    else if (event.key === "/") {
      const find = document.getElementById("find");
      if (find) { event.preventDefault(); find.focus(); }
    } else if (event.key === "p" && live) {
      stopped = !stopped;
      if (stopped) { stop(); say("stopped"); } else start();
    }
  });
})();
