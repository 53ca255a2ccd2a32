// Replaces the parts of the page that the server renders anew, and adds keys. The page works without it.
"use strict";

const link = document.getElementById("link");
const fields = "input, select, textarea";

const chosen = new Map(); // the details that the reader has opened or closed
document.addEventListener("click", (event) => {
  const details = event.target.closest("summary")?.parentElement;
  if (details) chosen.set(details.id, !details.open);
});

let isPressed = false; // a click would be lost if its button were replaced between press and release
addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) {
  addEventListener(end, () => setTimeout(() => { isPressed = false; }), true);
}

function isBusy(part) {
  if (isPressed) return true;
  const selection = getSelection();
  const isSelected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return isSelected || (part.contains(document.activeElement) && document.activeElement.matches(fields));
}

function replace(part, html) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.innerHTML = html;
  for (const [id, open] of chosen) {
    const found = document.getElementById(id);
    if (found) found.open = open;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

const pending = new Map();

function show() {
  for (const [id, html] of pending) {
    const part = document.getElementById(id);
    if (isBusy(part)) continue;
    pending.delete(id);
    replace(part, html);
  }
}

const source = new EventSource(location.href);
source.onopen = () => { link.textContent = "Live."; };
source.onerror = () => { link.textContent = "The desk does not answer: it may have ended. Trying again."; };
source.onmessage = (message) => {
  for (const [id, html] of Object.entries(JSON.parse(message.data))) pending.set(id, html);
  show();
};
setInterval(show, 500);
addEventListener("pagehide", () => source.close());
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches(fields)) return;
  const views = document.querySelectorAll("nav a");
  if (event.key === "/" && document.getElementById("filter")) {
    event.preventDefault();
    document.getElementById("filter").focus();
  } else if (/^[1-9]$/.test(event.key) && views[event.key - 1]) {
    views[event.key - 1].click();
  }
});
