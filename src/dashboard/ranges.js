// The table of resources with range locks: searched and paged by the server.

import { element, keep, say } from "./dom.js";
import { count, inPath, plural, rangePage } from "./format.js";
import { collect, repeat } from "./server.js";

const ROWS_STEP = 100;
const ROWS_MAX = 1000;
const ANSWERS_STEP = 32;
const REFRESH_MS = 2000;
const TYPING_MS = 250;

export function ranges(main, parameters) {
  let contains = parameters.get("contains") ?? "";
  let rowsWanted = ROWS_STEP;
  let answersAllowed = ANSWERS_STEP;
  const search = element("input", {
    type: "search",
    id: "search",
    placeholder: "Name contains…",
    "aria-label": "Search for resources whose name contains",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 256,
  });
  search.value = contains;
  const note = element("p", { class: "summary", role: "status" });
  const body = element("tbody");
  const head = ["Resource", "Range locks", "Waiting"].map((title) => element("th", { scope: "col" }, title));
  const table = element("table", { class: "resources" }, element("thead", {}, element("tr", {}, ...head)), body);
  const nothing = element("p", { class: "nothing", hidden: true });
  const more = element("button", { type: "button", class: "more", hidden: true });
  main.append(
    element("div", { class: "view-head" }, element("div", {}, element("h1", {}, "Byte ranges"), note)),
    element("div", { class: "tools" }, search),
    element("div", { class: "panel table-panel" }, table, nothing),
    more,
  );

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      contains = search.value;
      rowsWanted = ROWS_STEP;
      answersAllowed = ANSWERS_STEP;
      const query = contains === "" ? "" : `?${new URLSearchParams({ contains })}`;
      history.replaceState(null, "", `#/ranges${query}`);
      looking.now();
    }, TYPING_MS);
  });

  const looking = repeat(async (signal) => {
    const query = contains === "" ? "" : `&contains=${inPath(contains)}`;
    const how = { wanted: rowsWanted, answersMax: answersAllowed, signal, query };
    const { items, after } = await collect("/v1/ranges", "resources", (it) => it.resource, how);
    keep(body, items, (it) => it.resource, makeRow, updateRow);
    const isFull = items.length >= rowsWanted;
    const isMost = isFull && rowsWanted >= ROWS_MAX;
    table.hidden = items.length === 0;
    nothing.hidden = items.length > 0;
    say(
      nothing,
      contains === "" ? "Nobody has locked bytes of anything." : `No resource here has “${contains}” in its name.`,
    );
    more.hidden = after === null || isMost;
    say(more, isFull ? `Show ${ROWS_STEP} more` : "Not found everywhere yet: look further");
    if (after === null) say(note, plural(items.length, "resource", "resources"));
    else if (isMost) say(note, `The first ${count(items.length)}. Search to see others.`);
    else if (isFull) say(note, `The first ${count(items.length)}`);
    else say(note, `${count(items.length)} so far; not all were looked through`);
  }, REFRESH_MS);

  more.addEventListener("click", () => {
    if (body.children.length >= rowsWanted) rowsWanted = Math.min(ROWS_MAX, rowsWanted + ROWS_STEP);
    else answersAllowed += ANSWERS_STEP;
    looking.now();
  });

  return {
    title: "Byte ranges",
    stop() {
      clearTimeout(typing);
      looking.stop();
    },
  };
}

function makeRow(it) {
  const cell = (label) => element("td", { "data-label": label }, element("span", { class: "figure" }));
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, element("a", { href: rangePage(it.resource), class: "name" }, it.resource)),
    cell("Range locks"),
    cell("Waiting"),
  );
}

function updateRow(row, it) {
  const [, locks, waiting] = row.children;
  say(locks.firstChild, count(it.lock_count));
  say(waiting.firstChild, count(it.waiter_count));
}
