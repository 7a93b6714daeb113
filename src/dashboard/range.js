// One resource: its range locks as a bar and as a list, and who waits for bytes, in order.

import { bar, DRAWN_MAX, teller } from "./bar.js";
import { askToBreakRanges } from "./break.js";
import { element, keep, say, showAge } from "./dom.js";
import { bytesOf, count, inPath, modeOf, ownerOf, plural } from "./format.js";
import { getJson, repeat } from "./server.js";

const REFRESH_MS = 1000;

export function range(main, name) {
  const summary = element("p", { class: "summary", role: "status" });
  const place = element("div");
  const told = teller();
  const holders = table("holders", ["Owner", "How", "Bytes", "Held for", ""]);
  const waiters = table("waiters", ["Place", "Owner", "Wants", "Waits for whom", "Waits for"]);
  const holdersNote = element("p", { class: "nothing" });
  const waitersNote = element("p", { class: "nothing" });
  main.append(
    element("p", { class: "back" }, element("a", { href: "#/ranges" }, "← All resources")),
    element("div", { class: "view-head" }, element("div", {}, element("h1", { class: "name" }, name), summary)),
    place,
    told.node,
    element("section", { class: "panel table-panel" }, element("h3", {}, "Locked"), holders.table, holdersNote),
    element(
      "section",
      { class: "panel table-panel" },
      element("h3", {}, "Waiting, the next one first"),
      waiters.table,
      waitersNote,
    ),
  );
  let shape = null;

  const looking = repeat(async (signal) => {
    const found = await getJson(`/v1/ranges/${inPath(name)}`, { signal, isExact: true });
    const locks = found.locks.map(withEnd);
    const waiting = found.waiters.map(withEnd);
    say(summary, summaryOf(found));
    const ask = (lock) => {
      const overlapping = locks.filter((it) => overlaps(it, lock)).length;
      askToBreakRanges(name, lock, Math.max(1, overlapping), () => looking.now());
    };
    keep(holders.body, locks, keyOf, lockRow(ask), updateLock);
    keep(waiters.body, waiting, keyOf, waiterRow, updateWaiter);
    holders.table.hidden = locks.length === 0;
    waiters.table.hidden = waiting.length === 0;
    say(holdersNote, restOf(found.lock_count, locks.length, "Nobody has locked any of its bytes."));
    say(waitersNote, restOf(found.waiter_count, waiting.length, "Nobody waits for bytes of it."));
    // Drawn anew only if it looks otherwise, so that the focus stays where it is.
    const newShape = locks.map(keyOf).join("\n");
    if (newShape === shape) return;
    shape = newShape;
    place.replaceChildren(...(locks.length > 0 ? [bar(locks, told.tell)] : []));
    told.node.hidden = locks.length === 0;
  }, REFRESH_MS);

  return { title: name, stop: looking.stop };
}

/** With numbers that are exact, and the byte behind the last one, or `null` if it goes on to the end. */
function withEnd(range) {
  const [start, len] = [BigInt(range.start), BigInt(range.len)];
  return { ...range, start, len, end: len === 0n ? null : start + len };
}

const overlaps = (one, other) =>
  (other.end === null || one.start < other.end) && (one.end === null || other.start < one.end);

function summaryOf(found) {
  const drawn = found.lock_count > DRAWN_MAX ? ` · drawn are the first ${count(DRAWN_MAX)}` : "";
  return `${plural(found.lock_count, "range lock", "range locks")} · ${count(found.waiter_count)} waiting${drawn}`;
}

function restOf(all, shown, none) {
  if (all === 0) return none;
  return all > shown ? `and ${plural(all - shown, "other", "others")}` : "";
}

const keyOf = (range) =>
  [range.client, range.owner, range.mode, range.start, range.len, range.pending].map(String).join(" ");

function table(kind, titles) {
  const body = element("tbody");
  const head = titles.map((title) => element(title === "" ? "td" : "th", title === "" ? {} : { scope: "col" }, title));
  const made = element(
    "table",
    { class: `people ${kind}`, hidden: true },
    element("thead", {}, element("tr", {}, ...head)),
    body,
  );
  return { table: made, body };
}

const cell = (label, how = {}) => element("td", { "data-label": label }, element("span", how));

/** The row keeps the lock as it was last seen, for the question before it is broken. */
const lockRow = (ask) => () => {
  const button = element("button", { type: "button", class: "small danger-quiet" }, "Break…");
  const row = element(
    "tr",
    {},
    cell("Owner", { class: "who" }),
    element("td", { "data-label": "How" }, element("span"), element("small", { class: "quiet" })),
    cell("Bytes", { class: "figure bytes" }),
    cell("Held for", { class: "figure" }),
    element("td", { class: "action" }, button),
  );
  button.addEventListener("click", () => ask(row.lock));
  return row;
};

function updateLock(row, lock) {
  const [owner, mode, bytes, age, action] = row.children;
  row.lock = lock;
  say(owner.firstChild, ownerOf(lock));
  say(mode.firstChild, modeOf(lock));
  say(mode.lastChild, lock.pending ? "not reclaimed yet" : "");
  say(bytes.firstChild, bytesOf(lock));
  showAge(age.firstChild, lock.since_ms);
  action.firstChild.setAttribute("aria-label", `Break the lock of ${ownerOf(lock)} on ${bytesOf(lock)}`);
}

const waiterRow = () =>
  element(
    "tr",
    {},
    cell("Place", { class: "figure" }),
    cell("Owner", { class: "who" }),
    cell("Wants"),
    element("td", { "data-label": "Waits for whom" }, element("ul", { class: "blockers" })),
    cell("Waits for", { class: "figure" }),
  );

function updateWaiter(row, waiter) {
  const [position, owner, wants, blockers, age] = row.children;
  say(position.firstChild, count(waiter.position));
  say(owner.firstChild, ownerOf(waiter));
  say(wants.firstChild, `${modeOf(waiter)}, ${bytesOf(waiter)}`);
  keep(
    blockers.firstChild,
    waiter.waits_for.slice(0, 8),
    ownerOf,
    () => element("li", { class: "who" }),
    (item, it) => say(item, ownerOf(it)),
  );
  blockers.firstChild.classList.toggle("has-more", waiter.waits_for.length > 8);
  showAge(age.firstChild, waiter.since_ms);
}
