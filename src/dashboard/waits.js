// Who waits for whom, drawn: one drawing for each group that has to do with each other.

import { drawn, element, keep, say, showLeft, showNoTime } from "./dom.js";
import { count, lockPage, nameOf, plural, rangePage } from "./format.js";
import { OWNERS_MAX, SIZE, build, legible, parts, place } from "./graph.js";
import { collect, getJson, repeat } from "./server.js";

const LOCKS_MAX = 300;
const ANSWERS_MAX = 32;
// As many as the server tells.
const EDGES_MAX = 1000;
const REFRESH_MS = 2000;
const LABEL_CHARS_MAX = 18;

export function waits(main) {
  const summary = element("p", { class: "summary", role: "status" });
  const circles = element("div", { class: "circles" });
  const drawings = element("div", { class: "drawings" });
  const nothing = element("p", { class: "panel nothing", hidden: true }, "Nobody waits for anybody.");
  const words = element("ul", { class: "words" });
  const details = element("details", { class: "panel" }, element("summary", {}, "The same in words"), words);
  main.append(
    element("div", { class: "view-head" }, element("div", {}, element("h1", {}, "Who waits for whom"), summary), key()),
    circles,
    nothing,
    drawings,
    details,
  );
  let shape = null;
  const narrow = matchMedia("(max-width: 760px)");

  const looking = repeat(async (signal) => {
    const how = { wanted: LOCKS_MAX, answersMax: ANSWERS_MAX, signal, query: "&state=waiting" };
    const { items: locks, after } = await collect("/v1/locks", "locks", (lock) => lock.name, how);
    const { edges } = await getJson("/v1/waits", { signal });
    const rangeEdges = edges.filter((edge) => edge.kind === "range");
    const whole = build(locks, nameOf, rangeEdges);
    const { graph, owners, ownersLeftOut, locksLeftOut } = legible(whole);
    const left = { ownersLeftOut, locksLeftOut, isAll: after === null, isCut: edges.length >= EDGES_MAX };
    say(summary, summaryOf(locks, rangeEdges, owners, left));
    showCircles(circles, whole);
    const found = parts(graph);
    nothing.hidden = found.length > 0;
    drawings.hidden = found.length === 0;
    details.hidden = found.length === 0;
    const newShape = JSON.stringify([
      narrow.matches,
      ...graph.edges.map((edge) => [edge.from, edge.to, edge.waiter?.position, edge.inCircle]),
    ]);
    if (newShape === shape) return;
    shape = newShape;
    drawings.replaceChildren(...found.map((part) => drawing(part, narrow.matches)));
    words.replaceChildren(...graph.edges.filter((edge) => edge.kind === "waits").map((edge) => inWords(edge, graph)));
  }, REFRESH_MS);

  const turn = () => looking.now();
  narrow.addEventListener("change", turn);
  const stop = () => {
    narrow.removeEventListener("change", turn);
    looking.stop();
  };
  return { title: "Waits", stop };
}

function summaryOf(locks, rangeEdges, owners, { ownersLeftOut, locksLeftOut, isAll, isCut }) {
  const waiting = locks.reduce((sum, lock) => sum + lock.waiter_count, 0);
  const parts = [`${plural(waiting, "wait", "waits")} for ${plural(locks.length, "lock", "locks")}`];
  const forBytes = new Set(rangeEdges.map(({ waiter, on }) => `${waiter} ${on}`)).size;
  if (forBytes > 0) parts.push(`${plural(forBytes, "wait", "waits")} for bytes`);
  if (ownersLeftOut > 0 || locksLeftOut > 0) {
    parts.push(
      `drawn are ${plural(owners, "owner", "owners")}, circles and long queues first; ` +
        `left out are ${plural(locksLeftOut, "lock", "locks")} and ${plural(ownersLeftOut, "owner", "owners")} (at most ${OWNERS_MAX} are legible)`,
    );
  }
  if (!isAll) parts.push(`only the first ${count(locks.length)} locks with a queue were looked at`);
  if (isCut) parts.push("not all waits for bytes were told");
  return parts.join(" · ");
}

function key() {
  const item = (name, text) => element("li", {}, element("i", { class: `key-${name}` }), text);
  return element(
    "ul",
    { class: "key", "aria-label": "Key to the drawings" },
    item("owner", "owner"),
    item("lock", "lock or resource"),
    item("waits", "waits for"),
    item("held", "is held by"),
    item("circle", "circle"),
  );
}

/** One notice for each circle: who is in it, and when it ends by itself. */
function showCircles(place, graph) {
  const described = graph.circles.map((ids) => describeCircle(graph, ids));
  const make = () =>
    element(
      "section",
      { class: "notice bad", role: "alert" },
      element("h3"),
      element("p"),
      element("p", {}, element("span"), element("b", { class: "figure" })),
    );
  keep(
    place,
    described,
    (circle) => circle.title,
    make,
    (section, circle) => {
      const [title, path, end] = section.children;
      say(title, circle.title);
      say(path, circle.path);
      say(end.firstChild, circle.unless);
      if (circle.left_ms === null) showNoTime(end.lastChild);
      else showLeft(end.lastChild, circle.left_ms);
    },
  );
}

function describeCircle(graph, ids) {
  const inside = new Set(ids);
  const edges = graph.edges.filter((edge) => edge.inCircle && inside.has(edge.from));
  const label = (id) => graph.nodes.get(id).label;
  const owners = ids
    .filter((id) => graph.nodes.get(id).kind === "owner")
    .map(label)
    .sort();
  const path = edges
    .filter((edge) => edge.kind === "waits")
    .map(({ from, to }) => `${label(from)} waits for ${label(to)}`)
    .sort();
  const locks = ids.map((id) => graph.nodes.get(id)).filter((node) => node.kind === "lock");
  const hasOtherHolder = ({ id, lock }) => lock.holder_count > edges.filter((edge) => edge.from === id).length;
  const loose = locks.find((node) => node.lock.kind === "semaphore" && hasOtherHolder(node));
  const lefts = edges.filter((edge) => edge.kind === "held" && edge.holder).map((edge) => edge.holder.lease_left_ms);
  const names =
    owners.length > 4 ? `${owners.slice(0, 4).join(", ")} and ${owners.length - 4} others` : owners.join(" and ");
  return {
    title: owners.length === 1 ? `${names} waits for itself` : `${names} wait for each other`,
    path: `${path.slice(0, 6).join("; ")}${path.length > 6 ? "; …" : ""}.`,
    unless: lefts.length === 0
      ? "It ends when somebody’s time to wait is over, or something is broken."
      : loose
      ? `It ends when another holder of ${loose.label} lets go, a hold is broken, or at the latest in `
      : "It ends when a hold is broken, or with the first lease in it, in ",
    left_ms: lefts.length === 0 ? null : Math.min(...lefts),
  };
}

/** One part: from left to right, or on a narrow page from top to bottom. */
function drawing(part, isNarrow) {
  const { width, height, edge: border, isDown } = place(part, isNarrow);
  const labels = [...part.nodes.values()].filter((node) => node.kind === "lock").map((node) => node.label);
  const svg = drawn(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": `Who waits for ${labels.join(", ")}`,
    },
    ...part.edges.map((edge) => drawEdge(edge, part, isDown, border)),
    ...[...part.nodes.values()].map(drawNode),
  );
  const isCircle = [...part.nodes.values()].some((node) => node.circle !== undefined);
  return element(
    "div",
    {
      class: `panel drawing${isCircle ? " has-circle" : ""}`,
      tabindex: 0,
      role: "region",
      "aria-label": "Drawing, scrolls sideways",
    },
    svg,
  );
}

function drawNode(node) {
  const { width, height } = SIZE;
  const classes = ["node", node.kind, node.circle === undefined ? "" : "in-circle"].join(" ");
  const text = node.label.length > LABEL_CHARS_MAX ? `${node.label.slice(0, LABEL_CHARS_MAX - 1)}…` : node.label;
  const shape = drawn(
    "g",
    { class: classes, transform: `translate(${node.x} ${node.y})` },
    drawn("title", {}, node.kind === "owner" ? fullName(node.someone) : node.label),
    drawn("rect", { width, height, rx: node.kind === "lock" ? height / 2 : 6 }),
    drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, text),
  );
  if (node.kind !== "lock") return shape;
  const [page, what] = node.isRange ? [rangePage, "Resource"] : [lockPage, "Lock"];
  return drawn("a", { href: page(node.label), "aria-label": `${what} ${node.label}` }, shape);
}

function fullName(someone) {
  const where = [someone.connection == null ? null : `connection ${someone.connection}`, someone.address];
  return [nameOf(someone), ...where.filter((it) => it)].join(", ");
}

function drawEdge(edge, part, isDown, border) {
  const [from, to] = [part.nodes.get(edge.from), part.nodes.get(edge.to)];
  const { width, height, margin } = SIZE;
  // In the middle of a side: where it leaves, where it arrives.
  const right = (node) => [node.x + width, node.y + height / 2];
  const left = (node) => [node.x, node.y + height / 2];
  const below = (node) => [node.x + width / 2, node.y + height];
  const above = (node) => [node.x + width / 2, node.y];
  let path, tip;
  let [x, y] = isDown ? below(from) : right(from);
  // Beside the line, on the side it does not turn to.
  const labelY = isDown || to.y < from.y ? y + 13 : y - 6;
  const position = edge.waiter?.position;
  const label = position && !edge.isBack ? drawn("text", { x: x + 7, y: labelY }, count(position)) : null;
  if (edge.isBack && isDown) {
    // Beside everything, back up.
    [x, y] = right(from);
    const [toX, toY] = right(to);
    path = `M${x} ${y}C${border + 3 * margin} ${y} ${border + 3 * margin} ${toY} ${toX + 7} ${toY}`;
    tip = `M${toX + 1} ${toY}l7 -4v8z`;
  } else if (edge.isBack) {
    // Below everything, back to the left.
    [x, y] = below(from);
    const [toX, toY] = below(to);
    path = `M${x} ${y}C${x} ${border + 3 * margin} ${toX} ${border + 3 * margin} ${toX} ${toY + 7}`;
    tip = `M${toX} ${toY + 1}l-4 7h8z`;
  } else if (isDown) {
    const [toX, toY] = above(to);
    const bend = Math.max(18, (toY - y) / 2);
    path = `M${x} ${y}C${x} ${y + bend} ${toX} ${toY - bend} ${toX} ${toY - 7}`;
    tip = `M${toX} ${toY - 1}l-4 -7h8z`;
  } else {
    const [toX, toY] = left(to);
    const bend = Math.max(24, (toX - x) / 2);
    path = `M${x} ${y}C${x + bend} ${y} ${toX - bend} ${toY} ${toX - 7} ${toY}`;
    tip = `M${toX - 1} ${toY}l-7 -4v8z`;
  }
  const classes = ["edge", edge.kind, edge.inCircle ? "in-circle" : ""].join(" ");
  const title =
    edge.kind === "waits"
      ? `${from.label} waits for ${to.label}${position ? `, place ${position}` : ""}`
      : edge.isRange
        ? `${to.label} has bytes of ${from.label}, or comes before`
        : `${from.label} is held by ${to.label}`;
  return drawn(
    "g",
    { class: classes },
    drawn("title", {}, title),
    drawn("path", { class: "shaft", d: path }),
    drawn("path", { class: "tip", d: tip }),
    label,
  );
}

function inWords(edge, graph) {
  const lock = graph.nodes.get(edge.to);
  const holders = graph.edges.filter((it) => it.from === edge.to).map((it) => graph.nodes.get(it.to).label);
  const who = graph.nodes.get(edge.from).label;
  if (edge.isRange) {
    const text = `${who} waits for bytes of ${lock.label}, behind ${holders.join(", ")}`;
    return element("li", { class: edge.inCircle ? "in-circle" : null }, text);
  }
  const place = edge.waiter ? `, place ${count(edge.waiter.position)} in the queue` : "";
  return element(
    "li",
    { class: edge.inCircle ? "in-circle" : null },
    `${who} waits for ${lock.label}${place}; held by ${holders.join(", ") || "nobody"}`,
  );
}
