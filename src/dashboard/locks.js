// The table of locks: searched and paged by the server, shown as far as it was looked through.

import { element, keep, say, showAge, showLeft, showNoTime } from "./dom.js";
import { count, inPath, kindOf, lockPage, nameOf, plural } from "./format.js";
import { examples } from "./overview.js";
import { collect, latestStats, repeat } from "./server.js";

const ROWS_STEP = 100;
const ROWS_MAX = 1000;
// One answer looks at some thousands of locks, so a rare name takes many. After so many the reader is
// asked whether to go on.
const ANSWERS_STEP = 32;
const REFRESH_MS = 2000;
const TYPING_MS = 250;

const STATES = [
  ["All in use", ""],
  ["With a queue", "waiting"],
];

export function locks(main, parameters) {
  let contains = parameters.get("contains") ?? "";
  let state = parameters.get("state") ?? STATES[0][1];
  let rowsWanted = ROWS_STEP;
  let answersAllowed = ANSWERS_STEP;
  let isFresh = true;

  const search = element("input", {
    type: "search",
    id: "search",
    placeholder: "Name contains…",
    "aria-label": "Search for locks whose name contains",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 256,
  });
  search.value = contains;
  const states = STATES.map(([label, value]) =>
    element("button", { type: "button", "aria-pressed": String(value === state), onclick: () => choose(value) }, label),
  );
  const note = element("p", { class: "summary", role: "status" });
  const body = element("tbody");
  const head = ["Lock", "Held by", "Held for", "Lease left", "Waiting, in order"];
  const table = element(
    "table",
    { class: "locks" },
    element("thead", {}, element("tr", {}, ...head.map((title) => element("th", { scope: "col" }, title)))),
    body,
  );
  const nothing = element("div");
  const more = element("button", { type: "button", class: "more", hidden: true });
  main.append(
    element("div", { class: "view-head" }, element("div", {}, element("h1", {}, "Locks"), note)),
    element(
      "div",
      { class: "tools" },
      search,
      element("div", { class: "segments", role: "group", "aria-label": "Which locks" }, ...states),
    ),
    element("div", { class: "panel table-panel" }, table, nothing),
    more,
  );

  const choose = (value) => {
    state = value;
    states.forEach((button, index) => button.setAttribute("aria-pressed", String(STATES[index][1] === value)));
    anew();
  };
  const anew = () => {
    rowsWanted = ROWS_STEP;
    answersAllowed = ANSWERS_STEP;
    isFresh = true;
    const chosen = Object.entries({ contains, state }).filter(([, value]) => value !== "");
    history.replaceState(null, "", chosen.length === 0 ? "#/locks" : `#/locks?${new URLSearchParams(chosen)}`);
    looking.now();
  };
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      contains = search.value;
      anew();
    }, TYPING_MS);
  });

  const looking = repeat(async (signal) => {
    const query = (contains === "" ? "" : `&contains=${inPath(contains)}`) + (state === "" ? "" : `&state=${state}`);
    const onAnswer = (found, after) => isFresh && show(found, after, after !== null);
    const how = { wanted: rowsWanted, answersMax: answersAllowed, signal, onAnswer, query };
    const { items, after } = await collect("/v1/locks", "locks", (lock) => lock.name, how);
    isFresh = false;
    show(items, after, false);
  }, REFRESH_MS);

  function show(found, after, isLooking) {
    keep(body, found, (lock) => lock.name, makeRow, updateRow);
    table.hidden = found.length === 0;
    const isFull = found.length >= rowsWanted;
    more.hidden = isLooking || after === null || (isFull && rowsWanted >= ROWS_MAX);
    say(more, isFull ? `Show ${ROWS_STEP} more` : "Not found everywhere yet: look further");
    if (isLooking && !isFull) say(note, `${count(found.length)} found, looking…`);
    else if (after === null) say(note, plural(found.length, "lock", "locks"));
    else if (isFull && rowsWanted >= ROWS_MAX) say(note, `The first ${count(found.length)}. Search to see others.`);
    else
      say(
        note,
        isFull ? `The first ${count(found.length)}` : `${count(found.length)} so far; not all were looked through`,
      );
    showNothing(found.length === 0 && !isLooking);
  }

  function showNothing(isNothing) {
    const what = !isNothing ? "" : contains !== "" ? `search ${contains}` : state;
    if (nothing.dataset.what === what) return;
    nothing.dataset.what = what;
    nothing.replaceChildren();
    if (!isNothing) return;
    if (contains !== "") {
      nothing.append(element("p", { class: "nothing" }, `No lock here has “${contains}” in its name.`));
    } else if (state === "waiting") {
      nothing.append(element("p", { class: "nothing" }, "No lock has a queue: nobody waits."));
    } else {
      nothing.append(examples(latestStats()));
    }
  }

  more.addEventListener("click", () => {
    if (body.children.length >= rowsWanted) rowsWanted = Math.min(ROWS_MAX, rowsWanted + ROWS_STEP);
    else answersAllowed += ANSWERS_STEP;
    looking.now();
  });

  return {
    title: "Locks",
    stop() {
      clearTimeout(typing);
      looking.stop();
    },
  };
}

function makeRow(lock) {
  const cell = (label, ...children) => element("td", { "data-label": label }, ...children);
  return element(
    "tr",
    {},
    element(
      "th",
      { scope: "row" },
      element("a", { href: lockPage(lock.name), class: "name" }, lock.name),
      element("small", { class: "quiet" }),
    ),
    cell("Held by", element("span", { class: "who" }), element("small", { class: "quiet" })),
    cell("Held for", element("span", { class: "figure" })),
    cell("Lease left", element("span", { class: "figure left" })),
    cell("Waiting", element("span", { class: "figure waiting" }), element("ol", { class: "queue" })),
  );
}

function updateRow(row, lock) {
  const [name, holder, age, left, waiting] = row.children;
  const [first] = lock.holders;
  say(name.lastChild, lock.kind === "lock" ? "" : kindOf(lock));
  say(holder.firstChild, first ? nameOf(first) : lock.holder_count > 0 ? "" : "free");
  holder.firstChild.classList.toggle("quiet", !first);
  say(holder.lastChild, othersOf(lock));
  if (first) {
    showAge(age.firstChild, Math.max(...lock.holders.map((it) => it.since_ms)));
    showLeft(left.firstChild, Math.min(...lock.holders.map((it) => it.lease_left_ms)));
  } else {
    showNoTime(age.firstChild);
    showNoTime(left.firstChild);
  }
  say(waiting.firstChild, lock.waiter_count > 0 ? count(lock.waiter_count) : "");
  const shown = lock.waiters.slice(0, 3);
  const item = () => element("li");
  keep(
    waiting.lastChild,
    shown,
    (it) => it.position,
    item,
    (made, it) => say(made, nameOf(it)),
  );
  waiting.lastChild.classList.toggle("has-more", lock.waiter_count > shown.length);
}

function othersOf(lock) {
  if (lock.kind === "semaphore") return `${count(lock.holder_count)} of ${count(lock.limit)} slots`;
  const parts = [];
  if (lock.kind === "rwlock" && lock.holders[0]) {
    parts.push(lock.holders[0].mode === "write" ? "writes" : "reads");
  }
  if (lock.holder_count > 1) parts.push(`with ${plural(lock.holder_count - 1, "other", "others")}`);
  return parts.join(", ");
}
