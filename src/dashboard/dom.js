// Elements. Text goes in as text nodes only: there is no way to pass markup.

import { duration } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. `how` has attributes, and listeners as functions under `onclick` and the like; children
 * are elements, or text.
 */
export function element(tag, how = {}, ...children) {
  return fill(document.createElement(tag), how, children);
}

/** The same for drawings. */
export function drawn(tag, how = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), how, children);
}

function fill(made, how, children) {
  for (const [name, value] of Object.entries(how)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Text that changes; nothing is touched if it did not. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Makes `parent` have one child for each item, in order. A child made for the same key is kept, so that
 * focus and selection survive an update.
 */
export function keep(parent, items, keyOf, make, update) {
  const before = new Map();
  for (const child of parent.children) before.set(child.itemKey, child);
  const times = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    // The same key again is another child.
    const name = keyOf(item);
    times.set(name, (times.get(name) ?? 0) + 1);
    const key = `${times.get(name)} ${name}`;
    let child = before.get(key);
    before.delete(key);
    if (child === undefined) {
      child = make(item);
      child.itemKey = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of before.values()) child.remove();
}

/** A command with a button that copies it. */
export function command(label, text) {
  const code = element("code", {}, text);
  const button = element("button", { type: "button", class: "small", "aria-label": `Copy: ${label}` }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copy(text, code);
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return element(
    "div",
    { class: "command" },
    element("div", { class: "command-label" }, label, button),
    element("pre", { tabindex: 0 }, code),
  );
}

/** The clipboard is there on secure origins only; elsewhere the text is selected and copied the old way. */
async function copy(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

/** Shows how long something has been so, counting up from `ms`. */
export function showAge(node, ms) {
  node.dataset.since = String(performance.now() - ms);
  tickTime(node);
}

/** Shows how long a lease has left, counting down from `ms`. */
export function showLeft(node, ms) {
  node.dataset.until = String(performance.now() + ms);
  tickTime(node);
}

/** Shows no time. */
export function showNoTime(node) {
  delete node.dataset.since;
  delete node.dataset.until;
  say(node, "");
}

/** Moves all times below `root` on. */
export function tickTimes(root) {
  for (const node of root.querySelectorAll("[data-since], [data-until]")) tickTime(node);
}

function tickTime(node) {
  const now = performance.now();
  if (node.dataset.since !== undefined) return say(node, duration(now - Number(node.dataset.since)));
  const left_ms = Number(node.dataset.until) - now;
  say(node, left_ms > 0 ? duration(left_ms) : "over");
  node.classList.toggle("is-soon", left_ms < 5000);
}
