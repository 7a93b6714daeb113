// The overview: live charts, the longest queues, and what was counted since the start.

import { chartGrid } from "./charts.js";
import { clusterPanel, follows } from "./cluster.js";
import { command, element, keep, say } from "./dom.js";
import { bytes, count, duration, lockPage, micros, nameOf, plural } from "./format.js";
import { collect, hasToken, latestStats, repeat } from "./server.js";

const WINDOWS = [
  ["1 min", 60],
  ["5 min", 300],
  ["15 min", 900],
];
const QUEUES_SHOWN = 6;
const QUEUES_LOOKED_AT = 200;
const QUEUES_ANSWERS_MAX = 8;

/** Counted since the start: words, and where the figure is. */
const COUNTED = [
  ["Granted", "grants"],
  ["Released", "releases"],
  ["Ended by their lease", "expiries"],
  ["Ended with their connection", "disconnects"],
  ["Broken by an operator", "breaks"],
  ["Slow readers cut off", "slow_consumers"],
  ["Wrong tokens", "wrong_secrets"],
  ["Forbidden", "forbidden"],
];

const KEPT = [
  ["Locks", "locks", "idle_locks"],
  ["Semaphores", "semaphores", "idle_semaphores"],
  ["Read-write locks", "rw_locks", "idle_rw_locks"],
  ["Range locks", "range_locks"],
  ["Counters", "counters"],
  ["Values", "kv_entries"],
  ["Lists", "lists"],
  ["Barriers", "barriers"],
  ["Patterns listened to", "signal_channels"],
  ["Patterns watched", "watch_channels"],
];

/** What a turn of the loop is spent on. */
const WORK = {
  read: "reading",
  decide: "deciding",
  expire: "ending leases",
  depart: "closing connections",
  write: "writing",
};

export function overview(main) {
  const charts = chartGrid();
  const summary = element("p", { class: "summary" });
  const welcome = element("div");
  const counted = factList();
  const kept = factList();
  const health = factList();
  const member = clusterPanel();
  const queues = element("ol", { class: "queues" });
  const queuesNote = element("p", { class: "quiet" });
  const windows = WINDOWS.map(([label, seconds]) =>
    element(
      "button",
      { type: "button", "aria-pressed": String(seconds === 300), onclick: () => choose(seconds) },
      label,
    ),
  );
  const choose = (seconds) => {
    charts.show(seconds);
    windows.forEach((button, index) => button.setAttribute("aria-pressed", String(WINDOWS[index][1] === seconds)));
  };
  // What a server that only follows knows nothing of.
  const ofLocks = [
    panel("Longest queues", queues, queuesNote),
    panel("Since the start", counted.list),
    panel("In use, and idle", kept.list),
  ];
  main.append(
    element(
      "div",
      { class: "view-head" },
      element("div", {}, element("h1", {}, "Overview"), summary),
      element("div", { class: "segments", role: "group", "aria-label": "How much time the charts show" }, ...windows),
    ),
    welcome,
    charts.grid,
    element(
      "div",
      { class: "facts-grid" },
      member.node,
      ...ofLocks,
      panel("Health", health.list),
    ),
  );

  const stats = (now) => {
    charts.draw();
    const { totals } = now;
    say(summary, summaryOf(now));
    const isFollower = follows(now);
    for (const node of ofLocks) node.hidden = isFollower;
    member.show(now);
    const isUnused = totals.grants === 0 && now.held === 0 && !isFollower;
    if (isUnused && !welcome.firstChild) welcome.append(examples(now));
    if (!isUnused) welcome.replaceChildren();
    counted.show(COUNTED.map(([title, name]) => [title, count(totals[name])]));
    kept.show(
      KEPT.map(([title, name, idle]) => {
        const idleCount = idle ? totals[idle] : 0;
        return [title, count(totals[name]) + (idleCount > 0 ? `, ${count(idleCount)} idle` : "")];
      }),
    );
    health.show(healthOf(now));
  };
  if (latestStats() !== null) stats(latestStats());

  const looking = repeat(async (signal) => {
    const how = { wanted: QUEUES_LOOKED_AT, answersMax: QUEUES_ANSWERS_MAX, signal, query: "&state=waiting" };
    const { items, after } = await collect("/v1/locks", "locks", (lock) => lock.name, how);
    const longest = items.toSorted((a, b) => b.waiter_count - a.waiter_count).slice(0, QUEUES_SHOWN);
    keep(queues, longest, (lock) => lock.name, queueItem, updateQueueItem(longest[0]?.waiter_count ?? 1));
    const part = after === null ? "" : `Among the first ${count(items.length)} that have one.`;
    say(queuesNote, items.length === 0 && after === null ? "Nobody waits." : part);
    queuesNote.hidden = queuesNote.textContent === "";
  }, 2000);

  return {
    title: "Overview",
    stats,
    stop() {
      looking.stop();
      charts.stop();
    },
  };
}

function summaryOf(now) {
  if (follows(now)) return [`up ${duration(now.uptime_ms)}`, `latchd ${now.version}`].join(" · ");
  const inUse = now.totals.locks + now.totals.semaphores + now.totals.rw_locks;
  return [
    `${plural(inUse, "lock", "locks")} in use`,
    `${plural(now.waiting, "client waits", "clients wait")}`,
    `up ${duration(now.uptime_ms)}`,
    `latchd ${now.version}`,
  ].join(" · ");
}

function healthOf(now) {
  const { totals } = now;
  const bound = totals.memory_max_bytes;
  const share =
    bound > 0 ? ` (${((100 * totals.memory_bytes) / bound).toFixed(1)} % of ${bytes(bound)})` : ", no bound";
  const work = Object.entries(totals.longest_turn_work_us ?? {}).toSorted((a, b) => b[1] - a[1])[0];
  return [
    ["Memory", bytes(totals.memory_bytes) + share],
    ["Longest turn", micros(totals.longest_turn_us) + (work?.[1] > 0 ? `, mostly ${WORK[work[0]] ?? work[0]}` : "")],
    ["Changes recorded", count(totals.records)],
    ["Not on disk yet", count(totals.records_waiting)],
    ["Epoch", String(now.epoch)],
  ];
}

function panel(title, ...children) {
  return element("section", { class: "panel" }, element("h3", {}, title), ...children);
}

function factList() {
  const list = element("dl", { class: "facts" });
  const make = () => element("div", {}, element("dt"), element("dd", { class: "figure" }));
  const update = (row, [title, value]) => {
    say(row.firstChild, title);
    say(row.lastChild, value);
  };
  return { list, show: (facts) => keep(list, facts, ([title]) => title, make, update) };
}

function queueItem(lock) {
  return element(
    "li",
    {},
    element("a", { href: lockPage(lock.name), class: "name" }, lock.name),
    element("span", { class: "quiet holder" }),
    element("span", { class: "figure" }),
    element("span", { class: "bar", "aria-hidden": "true" }, element("i")),
  );
}

const updateQueueItem = (most) => (item, lock) => {
  const [, holder, waiting, bar] = item.children;
  say(
    holder,
    lock.holders[0] ? `held by ${nameOf(lock.holders[0])}${lock.holder_count > 1 ? " and others" : ""}` : "free",
  );
  say(waiting, count(lock.waiter_count));
  waiting.setAttribute("aria-label", plural(lock.waiter_count, "waits", "wait"));
  bar.firstChild.style.width = `${(100 * lock.waiter_count) / most}%`;
};

/** What to type first. */
export function examples(now) {
  const bearer = hasToken() ? ` -H "Authorization: Bearer $TOKEN"` : "";
  const curl = `curl ${location.origin}/v1/locks/job/acquire${bearer} -H 'Content-Type: application/json' -d '{"owner_id":"me","ttl_ms":60000}'`;
  const auth = hasToken() ? `printf 'auth\\n-\\n%s\\n' "$TOKEN"; ` : "";
  const port = now?.line_port === undefined ? 6388 : now.line_port;
  const nc = `(${auth}printf 'l\\njob\\n10 60\\n'; sleep 60) | nc ${location.hostname} ${port}`;
  return element(
    "section",
    { class: "panel welcome" },
    element("h2", {}, "Nothing is locked yet"),
    element("p", {}, "Take a lock, and it shows up here. This one is held for a minute, or until it is released:"),
    command("Over HTTP, with curl", curl),
    port === null
      ? null
      : element(
          "p",
          {},
          "A connection of the line protocol holds what it takes until it closes. Run this twice, and the second one waits:",
        ),
    port === null ? null : command("Over the line protocol, with nc", nc),
  );
}
