// The bytes of a resource as a bar: which of them are locked, and how.
//
// Not to scale, because a lock of one byte and one of a terabyte have to be seen beside each other: a piece
// is as wide as its length has digits, and what goes on to the end, however far it grows, ends in a point.
// Shared is hatched, exclusive is full, pending has a broken edge: no colour is needed to tell them apart.

import { drawn, element, say } from "./dom.js";
import { bytesOf, duration, modeOf, number, ownerOf } from "./format.js";

/** More than these are not legible in one bar. */
export const DRAWN_MAX = 200;

const WIDTH = 1000;
const LANE = 30;
const GAP = 6;
const POINT = 10;
const LABEL_EVERY = 110;

/**
 * The bar of these locks, which are sorted by their first bytes; `tell` is called with the one that the pointer
 * or the focus is at, and with `null` when it is at none.
 */
export function bar(locks, tell) {
  const shown = locks.slice(0, DRAWN_MAX);
  const scale = scaleOf(shown);
  const lanes = lanesOf(shown);
  const bottom = lanes.length * (LANE + GAP);
  const svg = drawn(
    "svg",
    {
      viewBox: `0 0 ${WIDTH + 2} ${bottom + 22}`,
      role: "group",
      "aria-label": "Locked bytes, not to scale",
      class: "byte-bar",
    },
    drawn(
      "defs",
      {},
      drawn(
        "pattern",
        { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        drawn("rect", { width: 8, height: 8, class: "hatch-ground" }),
        drawn("rect", { width: 3, height: 8, class: "hatch-line" }),
      ),
    ),
    drawn("line", { x1: 0, x2: WIDTH, y1: bottom, y2: bottom, class: "axis" }),
    ...labels(scale, bottom),
    ...lanes.flatMap((lane, row) => lane.map((lock) => piece(lock, row * (LANE + GAP), scale, tell))),
  );
  const how = { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Bar, scrolls sideways" };
  return element("div", { class: "panel bar-panel" }, key(), element("div", how, svg));
}

function key() {
  const item = (name, text) => element("li", {}, element("i", { class: `key-${name}` }), text);
  return element(
    "ul",
    { class: "key", "aria-label": "Key to the bar" },
    item("exclusive", "exclusive"),
    item("shared", "shared"),
    item("pending", "held before the restart, not reclaimed yet"),
    item("to-end", "to the end"),
  );
}

/** Where each first byte and each byte behind a last one is, from left to right. */
function scaleOf(locks) {
  const cuts = new Set([0n]);
  for (const { start, end } of locks) {
    cuts.add(start);
    if (end !== null) cuts.add(end);
  }
  const sorted = [...cuts].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const weights = sorted.slice(1).map((cut, index) => 1.5 + Math.log10(Number(cut - sorted[index])));
  const goesOn = locks.some(({ end }) => end === null);
  const last = goesOn || weights.length === 0 ? 3 : 0.4;
  const all = weights.reduce((sum, weight) => sum + weight, last);
  const places = new Map();
  let at = 0;
  sorted.forEach((cut, index) => {
    places.set(cut, at);
    at += (WIDTH * (weights[index] ?? last)) / all;
  });
  return places;
}

/** Locks that overlap are below each other. */
function lanesOf(locks) {
  const lanes = [];
  for (const lock of locks) {
    const isFree = (lane) => lane.at(-1).end !== null && lane.at(-1).end <= lock.start;
    const lane = lanes.find(isFree);
    if (lane) lane.push(lock);
    else lanes.push([lock]);
  }
  return lanes;
}

function piece(lock, y, scale, tell) {
  const left = scale.get(lock.start) + 1;
  const right = lock.end === null ? WIDTH : Math.max(left + 3, scale.get(lock.end) - 1);
  const width = right - left;
  const point = Math.min(POINT, width / 2);
  const shape =
    lock.end === null
      ? `M${left} ${y}h${width - point}l${point} ${LANE / 2}l${-point} ${LANE / 2}h${point - width}z`
      : `M${left} ${y}h${width}v${LANE}h${-width}z`;
  const classes = ["piece", lock.mode === "ex" ? "exclusive" : "shared", lock.pending ? "pending" : ""].join(" ");
  const how = lock.mode === "ex" ? {} : { fill: "url(#hatch)" };
  const words = inWords(lock);
  const made = drawn(
    "g",
    {
      class: classes,
      tabindex: 0,
      role: "img",
      "aria-label": words,
      onmouseenter: () => tell(lock),
      onmouseleave: () => tell(null),
      onfocus: () => tell(lock),
      onblur: () => tell(null),
    },
    drawn("title", {}, words),
    drawn("path", { d: shape, ...how }),
  );
  const text = ownerOf(lock);
  const room = Math.floor((width - 16) / 8);
  if (room >= 4) {
    const cut = text.length > room ? `${text.slice(0, room - 1)}…` : text;
    made.append(
      drawn("rect", {
        x: left + 5,
        y: y + 6,
        width: 8 * cut.length + 6,
        height: LANE - 12,
        rx: 4,
        class: "name-ground",
      }),
      drawn("text", { x: left + 8, y: y + LANE / 2, "dominant-baseline": "central" }, cut),
    );
  }
  return made;
}

function labels(scale, bottom) {
  const made = [];
  let free = 0;
  for (const [cut, x] of scale) {
    const room = Math.max(LABEL_EVERY, 9 * number(cut).length);
    const isLate = x + room > WIDTH;
    if (x < free || (isLate && x - room < free - LABEL_EVERY)) continue;
    made.push(
      drawn("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: "axis" }),
      drawn("text", { x, y: bottom + 18, "text-anchor": isLate ? "end" : "start", class: "axis-text" }, number(cut)),
    );
    free = x + room;
  }
  return made;
}

/** One lock, said. */
export function inWords(lock) {
  const since = lock.pending ? "held before the restart, not reclaimed yet" : `for ${duration(lock.since_ms)}`;
  return `${bytesOf(lock)}, ${modeOf(lock)}, ${ownerOf(lock)}, ${since}`;
}

/** Where the one that the pointer or the focus is at is told. */
export function teller() {
  const node = element("p", { class: "told quiet", role: "status" });
  const nothing = "Point at a lock, or go there with the Tab key, to read what it is.";
  say(node, nothing);
  return { node, tell: (lock) => say(node, lock === null ? nothing : inWords(lock)) };
}
