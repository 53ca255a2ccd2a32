// Replaces the parts of the page that the server renders anew. The page works without it.
"use strict";

const link = document.getElementById("link");
const fields = "input";
const dialog = document.getElementById("shortcuts");

const chosen = new Map(); // the details that the reader has opened or closed
document.addEventListener("click", (event) => {
  const details = event.target.closest("summary")?.parentElement;
  if (details) chosen.set(details.id, !details.open);
  const copied = event.target.closest("[data-copy]");
  if (copied) copy(copied);
});

let isPressed = false; // a click would be lost if its button were replaced between press and release
addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) {
  addEventListener(end, () => setTimeout(() => { isPressed = false; }), true);
}

function isBusy(part) {
  const selection = getSelection();
  const isSelected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  const isEdited = part.contains(document.activeElement) && document.activeElement.matches(fields);
  return isPressed || isSelected || isEdited;
}

// What an element does or leads to: an element that is made anew has the same.
function nameOf(element) {
  if (element.id) return element.id;
  const told = element.getAttribute("href") ?? element.dataset.copy;
  if (told) return told;
  if (element.matches("button") && element.form) return `${new URLSearchParams(new FormData(element.form, element))}`;
  return element.parentElement.closest("[id]")?.id ?? "";
}

function alike(name, tag) {
  return [...document.querySelectorAll(tag)].filter((each) => nameOf(each) === name);
}

function rowsNow() { // rows, or of a row of a table its first link
  const found = [...document.querySelectorAll("#live .row, #live tbody tr:has(a):not(:has(.row))")];
  return found.map((row) => row.matches("tr") ? row.querySelector("a") : row).filter((row) => row.checkVisibility());
}

function rowOf(rows, element) {
  return rows.findIndex((row) => row === element || row.closest("tr")?.contains(element));
}

function placeOf(element) { // what finds it again, or the row that has taken its place
  const name = nameOf(element);
  const tag = element.localName;
  return { name, tag, nth: alike(name, tag).indexOf(element), row: rowOf(rowsNow(), element) };
}

function focusAt({ name, tag, nth, row }, options) {
  const found = alike(name, tag);
  const rows = rowsNow();
  const instead = row === -1 ? null : rows[Math.min(row, rows.length - 1)];
  (found[nth] ?? found.at(-1) ?? instead)?.focus(options);
}

function replace(part, html) {
  const place = part.contains(document.activeElement) ? placeOf(document.activeElement) : null;
  part.innerHTML = html;
  for (const [id, open] of chosen) {
    const found = document.getElementById(id);
    if (found) found.open = open;
  }
  if (place) focusAt(place, { preventScroll: true });
}

// Whoever goes back finds the focus where it was left.
const address = `focus ${location.pathname}${location.search}`;
addEventListener("pagehide", () => {
  const left = document.activeElement;
  if (left.closest("#live")) sessionStorage.setItem(address, JSON.stringify(placeOf(left)));
  else sessionStorage.removeItem(address);
});
const leftAt = sessionStorage.getItem(address);
if (leftAt && performance.getEntriesByType("navigation")[0]?.type === "back_forward") focusAt(JSON.parse(leftAt));

async function copy(element) {
  await navigator.clipboard?.writeText(element.dataset.copy);
  element.classList.add("copied");
  setTimeout(() => element.classList.remove("copied"), 1500);
}

function step(by) {
  const rows = rowsNow();
  const at = rowOf(rows, document.activeElement);
  rows[at === -1 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

function back() {
  if (document.activeElement.matches(fields)) document.activeElement.blur();
  else if (document.referrer.startsWith(location.origin)) history.back();
  else document.querySelector(".crumb a")?.click();
}

let isGoing = false; // g was pressed: the next key names a view
const keys = {
  "/": () => document.querySelector(".find input").focus(),
  "j": () => step(1),
  "k": () => step(-1),
  "c": () => document.querySelector("[data-copy]")?.click(),
  "g": () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
  "?": () => dialog.showModal(),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.key === "Escape") return back();
  if (event.target.closest?.(fields)) return;
  const place = isGoing && document.querySelector(`.side [data-key="${CSS.escape(event.key)}"]`);
  isGoing = false;
  if (!place && !keys[event.key]) return;
  event.preventDefault(); // the key would be typed into the field that it leads to
  if (place) place.click();
  else keys[event.key]();
});

const shown = {}; // by the ids of parts
let wanted = {}; // all of the newest answer: a part that was busy is tried again
let tag = "";

function say(text, state) {
  link.className = state;
  link.innerHTML = "<span></span>";
  link.firstChild.textContent = text;
}

function loseTouch() { // what the bar says is not known any more
  say("The desk does not answer", "away");
  const bar = document.getElementById("unknown").content.cloneNode(true);
  bar.querySelector("time").textContent = new Date().toISOString().slice(11, 19);
  document.getElementById("status").replaceChildren(bar);
  delete shown.status;
}

async function refresh() {
  try {
    const headers = { accept: "application/json", "if-none-match": tag };
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    if (answer.status !== 304) {
      if (!answer.headers.get("content-type").includes("json")) throw new Error(answer.status);
      wanted = await answer.json();
      tag = answer.headers.get("etag") ?? "";
    }
    if (link.className !== "live") say("Live", "live");
  } catch {
    if (link.className !== "away") loseTouch();
  }
  for (const [id, html] of Object.entries(wanted)) {
    const part = document.getElementById(id);
    if (!part && id !== "title") return location.reload(); // the desk had failed here, and answers again
    if (html === shown[id] || (id === "status" && link.className === "away")) continue;
    if (id === "title") {
      document.title = shown[id] = html;
      continue;
    }
    if (isBusy(part)) continue;
    shown[id] = html;
    replace(part, html);
  }
  setTimeout(refresh, 400);
}
refresh();
