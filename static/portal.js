// What pages do beyond plain HTML: running clocks, live announcements, a banner for answers that did not come, and
// keys that move but never decide. Every page works without this file.
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  // --- the server's clock -------------------------------------------------------------------------------------------
  // The offset is taken as of the answer's first byte, so that a slow line makes the clock early, never late.
  let offset = 0;
  const now = () => Date.now() + offset;
  const setClock = (serverMs, receivedMs) => {
    if (serverMs > 0) offset = serverMs - receivedMs;
  };
  const [visit] = performance.getEntriesByType("navigation");
  setClock(
    Number(document.documentElement.dataset.now),
    visit && visit.responseStart ? performance.timeOrigin + visit.responseStart : Date.now(),
  );

  const title = document.title;
  const soon = 60;
  let spokenAt = 0;

  function drawClock(clock) {
    const until = Date.parse(clock.dataset.until);
    const start = Date.parse(clock.dataset.start);
    const left = Math.max(0, Math.floor((until - now()) / 1000));
    const text = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
    const shown = find("[data-left]", clock);
    if (shown.textContent === text) return left;
    shown.textContent = text;
    clock.classList.toggle("soon", left < soon);
    const bar = find("progress", clock);
    bar.value = Math.min(bar.max, Math.max(0, (now() - start) / 1000));
    if (left === 0) find("small", clock).textContent = "time is up";
    return left;
  }

  function drawTitle(left) {
    const page = find("[data-title]");
    const queue = find("#queue");
    if (page && left !== null) {
      const text = find("[data-until] [data-left]", page);
      document.title = text ? `${text.textContent} · ${page.dataset.title}` : page.dataset.title;
    } else if (queue) {
      document.title = title.replace(/^\(\d+\) /, "");
      if (Number(queue.dataset.count)) document.title = `(${queue.dataset.count}) ${document.title}`;
    }
  }

  function tick() {
    let big = null;
    for (const clock of all("[data-until]")) {
      const left = drawClock(clock);
      if (clock.classList.contains("big")) big = left;
    }
    const time = find("[data-clock] time");
    if (time) time.textContent = new Date(now()).toISOString().slice(11, 19);
    drawTitle(big);
    if (big !== null) {
      const step = [60, 15].find((mark) => big === mark);
      if (step && spokenAt !== step) {
        spokenAt = step;
        say(`${step} seconds left.`);
      }
      if (big === 0) all("[data-decides] button").forEach((button) => (button.disabled = true));
    }
  }

  // --- saying and warning -------------------------------------------------------------------------------------------
  function say(text) {
    const place = find("#say");
    place.textContent = "";
    window.setTimeout(() => (place.textContent = text), 50);
  }

  const banner = find("#banner");
  let failures = 0;
  let kept = false; // what became of an act is not known: only a fresh page says so
  function warn(text) {
    find("span", banner).textContent = text;
    banner.hidden = false;
  }
  find("[data-reload]", banner).addEventListener("click", () => window.location.reload());

  const unconfirmed = "Not confirmed. Load the page again to see the state before you act again.";
  const why = {
    0: `No answer from the portal. ${unconfirmed}`,
    403: "Refused: this page is out of date or you may not do this. Nothing was done. Load the page again.",
    404: "This is no longer here for you. Load the page again.",
    503: "The portal is busy. Load the page again in a moment to see the state.",
  };

  // One failed poll is no news; two in a row are. An answer to an act is always news.
  function failed(event) {
    const poll = event.detail.elt.hasAttribute("data-poll");
    failures += 1;
    if (poll && (kept || failures < 2)) return;
    if (!poll) kept = true;
    const status = event.detail.xhr ? event.detail.xhr.status : 0;
    warn(why[status] || `The portal answered ${status}. ${unconfirmed}`);
  }
  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.body.addEventListener(name, (event) => {
      // 401 carries HX-Redirect to the sign-in page, and htmx follows it
      if (!event.detail.xhr || event.detail.xhr.status !== 401) failed(event);
    });
  }
  window.addEventListener("offline", () => warn("You are offline. What this page shows may be old."));
  window.addEventListener("online", () => {
    if (failures === 0) banner.hidden = !kept;
  });

  // --- fragments ----------------------------------------------------------------------------------------------------
  let cards = new Set();
  const cardsNow = () => new Set(all("[data-card]").map((row) => row.dataset.card));
  let focused = null;
  let state = find("[data-say-state]")?.dataset.sayState;

  document.body.addEventListener("htmx:beforeRequest", (event) => {
    // nobody looks: only the queue is followed behind a hidden tab, for the count in its title
    const poll = event.detail.elt;
    if (document.hidden && poll.hasAttribute("data-poll") && poll.id !== "queue") event.preventDefault();
    // an act is under way: a poll must not replace the card that waits for its answer
    if (poll.hasAttribute("data-poll") && find("form.htmx-request", poll)) event.preventDefault();
    if (poll.hasAttribute("data-decides")) htmx.trigger(poll.closest("[data-poll]"), "htmx:abort");
  });

  document.body.addEventListener("htmx:beforeSwap", () => {
    focused = document.activeElement?.closest("[data-card]")?.dataset.card || null;
  });

  document.body.addEventListener("htmx:afterRequest", (event) => {
    const xhr = event.detail.xhr;
    if (!event.detail.successful && ![409, 422].includes(xhr.status)) return;
    failures = 0;
    banner.hidden = !kept;
    setClock(Number(xhr.getResponseHeader("Portal-Now")), Date.now());
  });

  document.body.addEventListener("htmx:afterSettle", () => {
    const present = cardsNow();
    const fresh = Array.from(present).filter((card) => !cards.has(card)).length;
    if (fresh && find("#queue")) say(`${fresh} new ${fresh === 1 ? "card" : "cards"}.`);
    cards = present;
    if (focused && document.activeElement === document.body) find(`[data-card="${focused}"] a`)?.focus();
    focused = null;
    for (const note of all("[data-say]")) {
      say(note.textContent);
      note.removeAttribute("data-say");
      if (document.activeElement === document.body) note.focus();
    }
    const shown = find("[data-say-state]")?.dataset.sayState;
    if (shown && shown !== state) say(`State: ${shown}.`);
    state = shown;
    joinText();
    trim();
    tick();
  });

  // Folded text that came in two rows reads as one.
  function joinText() {
    for (const row of all(".trail > .text + .text")) {
      const before = row.previousElementSibling;
      before.append(...row.childNodes);
      row.remove();
    }
  }

  document.addEventListener("htmx:oobAfterSwap", joinText);

  // The transcript on the page stays bounded; "Earlier rows" has the rest.
  function trim() {
    const rows = find("#transcript")?.children;
    while (rows && rows.length > 600) rows[0].remove();
  }

  // --- keys: they move and open, and never decide (case 50) -----------------------------------------------------------
  function step(by) {
    const links = all("#queue [data-card] a");
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))].focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select, button, summary, dialog, [contenteditable]")) return;
    const act = { j: () => step(1), k: () => step(-1), "?": () => find("#keys")?.showModal() }[event.key];
    if (act && find("#queue")) {
      event.preventDefault();
      act();
    }
  });

  // Enter in a checkbox submits a form by its first button, which decides nothing; here it is not even sent.
  document.addEventListener(
    "submit",
    (event) => {
      if (!event.submitter?.hasAttribute("data-nothing")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    },
    true,
  );

  // A second press of the same plain form waits for the answer to the first.
  for (const form of all("form[data-once]")) {
    form.addEventListener("submit", () => window.setTimeout(() => all("button", form).forEach((b) => (b.disabled = true))));
  }
  window.addEventListener("pageshow", (event) => event.persisted && window.location.reload());

  cards = cardsNow();
  joinText();
  tick();
  window.setInterval(tick, 250);
})();
