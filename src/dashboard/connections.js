// The table of connections.

import { element, keep, say, showAge } from "./dom.js";
import { count, plural } from "./format.js";
import { collect, repeat } from "./server.js";

const ROWS_STEP = 100;
const ROWS_MAX = 1000;
const ANSWERS_MAX = 32;
const REFRESH_MS = 2000;

export function connections(main) {
  let rowsWanted = ROWS_STEP;
  const note = element("p", { class: "summary", role: "status" });
  const body = element("tbody");
  const titles = ["Connection", "Name", "From", "Speaks", "Open for", "Holds", "Waits"];
  const head = titles.map((title) => element("th", { scope: "col" }, title));
  const table = element("table", { class: "connections" }, element("thead", {}, element("tr", {}, ...head)), body);
  const more = element("button", { type: "button", class: "more", hidden: true }, `Show ${ROWS_STEP} more`);
  main.append(
    element("div", { class: "view-head" }, element("div", {}, element("h1", {}, "Connections"), note)),
    element("div", { class: "panel table-panel" }, table),
    more,
  );

  const looking = repeat(async (signal) => {
    const how = { wanted: rowsWanted, answersMax: ANSWERS_MAX, signal };
    const { items, after } = await collect("/v1/connections", "connections", (it) => it.connection, how);
    keep(body, items, (it) => it.connection, makeRow, updateRow);
    say(note, after === null ? plural(items.length, "connection", "connections") : `The first ${count(items.length)}`);
    more.hidden = after === null || rowsWanted >= ROWS_MAX;
  }, REFRESH_MS);

  more.addEventListener("click", () => {
    rowsWanted = Math.min(ROWS_MAX, rowsWanted + ROWS_STEP);
    looking.now();
  });
  return { title: "Connections", stop: looking.stop };
}

function makeRow(it) {
  const cell = (label, how = {}) => element("td", { "data-label": label }, element("span", how));
  return element(
    "tr",
    {},
    element("th", { scope: "row", class: "figure" }, String(it.connection)),
    cell("Name", { class: "who" }),
    cell("From"),
    cell("Speaks"),
    cell("Open for", { class: "figure" }),
    cell("Holds", { class: "figure" }),
    cell("Waits", { class: "figure" }),
  );
}

function updateRow(row, it) {
  const [, name, address, door, age, held, waiting] = [...row.children].map((cell) => cell.firstChild);
  say(name, it.name ?? "");
  say(address, it.address ?? "");
  say(door, it.door === "http" ? "HTTP" : "lines");
  showAge(age, it.age_ms);
  say(held, count(it.held));
  say(waiting, count(it.waiting));
}
