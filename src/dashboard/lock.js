// One lock: everybody who holds it, everybody who waits for it, in order.

import { askToBreak } from "./break.js";
import { element, keep, say, showAge, showLeft } from "./dom.js";
import { count, inPath, kindOf, nameOf, plural } from "./format.js";
import { getJson, repeat } from "./server.js";

const REFRESH_MS = 1000;

export function lock(main, name) {
  const summary = element("p", { class: "summary", role: "status" });
  const holders = peopleTable("holders", ["Owner", "Fence", "From", "Held for", "Lease left", ""]);
  const waiters = peopleTable("waiters", ["Place", "Owner", "From", "Waits for"]);
  const holdersNote = element("p", { class: "nothing" });
  const waitersNote = element("p", { class: "nothing" });
  main.append(
    element("p", { class: "back" }, element("a", { href: "#/locks" }, "← All locks")),
    element("div", { class: "view-head" }, element("div", {}, element("h1", { class: "name" }, name), summary)),
    element("section", { class: "panel table-panel" }, element("h3", {}, "Held by"), holders.table, holdersNote),
    element(
      "section",
      { class: "panel table-panel" },
      element("h3", {}, "Waiting, the next one first"),
      waiters.table,
      waitersNote,
    ),
  );

  const looking = repeat(async (signal) => {
    const found = await getJson(`/v1/who/${inPath(name)}`, { signal });
    say(summary, summaryOf(found));
    const ask = (holder) => askToBreak(name, holder, () => looking.now());
    keep(holders.body, found.holders, (it) => it.fencing_token, holderRow(ask), updateHolder);
    keep(waiters.body, found.waiters, keyOfWaiter, waiterRow, updateWaiter);
    holders.table.hidden = found.holders.length === 0;
    waiters.table.hidden = found.waiters.length === 0;
    say(holdersNote, restOf(found.holder_count, found.holders.length, "Nobody holds it."));
    say(waitersNote, restOf(found.waiter_count, found.waiters.length, "Nobody waits for it."));
  }, REFRESH_MS);

  return { title: name, stop: looking.stop };
}

function summaryOf(found) {
  if (found.kind === null) return "Unknown: nobody has used a lock of this name, or not for long.";
  const held =
    found.kind === "semaphore"
      ? `${count(found.holder_count)} of ${count(found.limit)} slots held`
      : plural(found.holder_count, "holder", "holders");
  return `${kindOf(found)} · ${held} · ${count(found.waiter_count)} waiting`;
}

function restOf(all, shown, none) {
  if (all === 0) return none;
  return all > shown ? `and ${plural(all - shown, "other", "others")}` : "";
}

function peopleTable(kind, titles) {
  const body = element("tbody");
  const head = titles.map((title) => element(title === "" ? "td" : "th", title === "" ? {} : { scope: "col" }, title));
  const table = element(
    "table",
    { class: `people ${kind}`, hidden: true },
    element("thead", {}, element("tr", {}, ...head)),
    body,
  );
  return { table, body };
}

const cell = (label, how = {}) => element("td", { "data-label": label }, element("span", how));
const who = () =>
  element("td", { "data-label": "Owner" }, element("span", { class: "who" }), element("small", { class: "quiet" }));

/** The row keeps the holder as it was last seen, for the question before it is broken. */
const holderRow = (ask) => () => {
  const button = element("button", { type: "button", class: "small danger-quiet" }, "Break…");
  const row = element(
    "tr",
    {},
    who(),
    cell("Fence", { class: "figure" }),
    cell("From"),
    cell("Held for", { class: "figure" }),
    cell("Lease left", { class: "figure left" }),
    element("td", { class: "action" }, button),
  );
  button.addEventListener("click", () => ask(row.holder));
  return row;
};

function updateHolder(row, holder) {
  const [owner, fence, from, age, left, action] = row.children;
  row.holder = holder;
  showWho(owner, holder);
  say(fence.firstChild, String(holder.fencing_token));
  say(from.firstChild, whereFrom(holder));
  showAge(age.firstChild, holder.since_ms);
  showLeft(left.firstChild, holder.lease_left_ms);
  action.firstChild.setAttribute("aria-label", `Break the hold of ${nameOf(holder)}, fence ${holder.fencing_token}`);
}

// A place changes as the queue moves on; a waiter does not.
const keyOfWaiter = (waiter) =>
  `${waiter.connection} ${waiter.owner} ${waiter.connection == null ? waiter.position : ""} ${waiter.mode}`;

const waiterRow = () =>
  element("tr", {}, cell("Place", { class: "figure" }), who(), cell("From"), cell("Waits for", { class: "figure" }));

function updateWaiter(row, waiter) {
  const [place, owner, from, age] = row.children;
  say(place.firstChild, count(waiter.position));
  showWho(owner, waiter);
  say(from.firstChild, whereFrom(waiter));
  showAge(age.firstChild, waiter.since_ms);
}

const MODES = { read: "reads", write: "writes", lead: "leads", slot: "" };

function showWho(node, someone) {
  say(node.firstChild, nameOf(someone));
  const notes = [MODES[someone.mode] ?? someone.mode, someone.restored ? "restored" : ""];
  say(node.lastChild, notes.filter((it) => it).join(", "));
}

function whereFrom(someone) {
  const parts = [];
  if (someone.connection != null && someone.owner) parts.push(`connection ${someone.connection}`);
  if (someone.user) parts.push(`let in as ${someone.user}`);
  if (someone.address) parts.push(someone.address);
  if (!someone.address && someone.connection == null)
    parts.push(someone.restored ? "before the restart" : "HTTP, no connection");
  return parts.join(", ");
}
