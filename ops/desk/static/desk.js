// Replaces the parts of the page that the server renders anew. The page works without it.
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
  const selection = getSelection();
  const isSelected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return isPressed || isSelected || (part.contains(document.activeElement) && document.activeElement.matches(fields));
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

function search() {
  const field = document.querySelector("[role=search] input");
  if (field) field.select();
  else location.href = "/facts#search";
}

function step(by) {
  const rows = [...document.querySelectorAll("#live tbody tr")];
  const links = rows.map((row) => row.querySelector("a")).filter(Boolean);
  const at = links.indexOf(document.activeElement);
  links[at === -1 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

const keys = {
  "/": search,
  "j": () => step(1),
  "k": () => step(-1),
  "?": () => document.getElementById("shortcuts").showModal(),
};
addEventListener("keydown", (event) => {
  const isText = event.target.closest?.(fields);
  if (isText || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault(); // the key would be typed into the field that it leads to
  keys[event.key]();
});
if (location.hash === "#search") search();

const shown = {}, wanted = {};
let tag = "";

async function refresh() {
  try {
    const headers = { accept: "application/json", "if-none-match": tag };
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    if (answer.status === 200) {
      Object.assign(wanted, await answer.json());
      tag = answer.headers.get("etag");
    } else if (answer.status !== 304) throw new Error(answer.status);
    link.textContent = "Live.";
  } catch {
    link.textContent = "The desk does not answer: it may have ended. Trying again.";
  }
  for (const [id, html] of Object.entries(wanted)) {
    const part = document.getElementById(id);
    if (html === shown[id] || isBusy(part)) continue;
    shown[id] = html;
    replace(part, html);
  }
  setTimeout(refresh, 400);
}
refresh();
