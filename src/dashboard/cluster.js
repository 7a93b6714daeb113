// A member of a cluster: what it is, who leads, how far behind it is, how long commits take, how large etcd is.

import { element, keep, say } from "./dom.js";
import { bytes, count, micros, plural } from "./format.js";

/** What each role means, as a title and a sentence, for those that do not serve. */
const NOTICES = {
  standby: [
    "This server follows",
    "Another member of its cluster leads and serves. This one keeps a copy of everything, and takes over when the leader is gone.",
  ],
  candidate: ["This server is about to lead", "Nobody led, so it takes over: it reads the log to its end, and then serves."],
  fenced: [
    "This server has lost the lead",
    "Another member leads, or will. What it had not said it never says, and it follows again in a moment.",
  ],
};
const NOBODY = ["Nobody leads", "No member of the cluster leads at the moment. One takes over within some seconds, if etcd answers."];

/** Whether this server has no locks to show, because another one decides. */
export function follows(stats) {
  return Object.hasOwn(NOTICES, stats?.cluster?.role ?? "");
}

/** The role as a word behind "Live"; nothing if the server is alone. */
export function roleOf(stats) {
  return stats?.cluster?.role ?? null;
}

/** Where the dashboard of the leader is, at the same view; `null` if it is not known. */
export function leaderPage(cluster) {
  // It was written by another member, and a link goes nowhere else than to a page.
  if (!URL.canParse(cluster.leader_http ?? "")) return null;
  const { protocol, origin } = new URL(cluster.leader_http);
  return ["http:", "https:"].includes(protocol) ? `${origin}/${location.hash}` : null;
}

/** The notice above every view of a server that does not serve. */
export function showMember(notice, stats) {
  const isShown = follows(stats);
  notice.hidden = !isShown;
  if (!isShown) return;
  const { cluster } = stats;
  const isLed = cluster.leader !== null || cluster.leader_http !== null;
  const [title, sentence] = cluster.role === "standby" && !isLed ? NOBODY : NOTICES[cluster.role];
  notice.classList.toggle("warn", !isLed);
  const [heading, text, where] = notice.children;
  say(heading, title);
  say(text, sentence);
  const page = leaderPage(cluster);
  where.hidden = !isLed;
  const link = where.querySelector("a");
  const plain = where.querySelector("b");
  link.hidden = page === null;
  plain.hidden = page !== null;
  if (page !== null) {
    if (link.getAttribute("href") !== page) link.setAttribute("href", page);
    say(link, new URL(page).host);
  }
  say(plain, cluster.leader ?? "");
}

/** The panel of the overview. */
export function clusterPanel() {
  const list = element("dl", { class: "facts" });
  const node = element("section", { class: "panel", id: "cluster", hidden: true }, element("h3", {}, "Cluster"), list);
  const make = () => element("div", {}, element("dt"), element("dd", { class: "figure" }));
  const update = (row, [title, value]) => {
    say(row.firstChild, title);
    say(row.lastChild, value);
  };
  const show = (stats) => {
    node.hidden = stats.cluster === null || stats.cluster === undefined;
    if (!node.hidden) keep(list, factsOf(stats.cluster), ([title]) => title, make, update);
  };
  return { node, show };
}

function factsOf(cluster) {
  const isLeader = cluster.role === "leader" || cluster.role === "paused";
  const facts = [
    ["Role", cluster.role],
    ["Epoch", count(cluster.epoch)],
    ["Leader", cluster.leader ?? "nobody"],
    ...(cluster.shards > 1 ? [["Shard", `${count(cluster.shard)} of ${count(cluster.shards)}, counted from 0`]] : []),
    ["Last entry of the log", count(cluster.log_entry)],
  ];
  if (isLeader) {
    facts.push(
      ["Commits", spread(cluster.commit_us, "none in the last second")],
      ["Commits since the start", count(cluster.commits)],
      ["Answers of etcd that did not come", count(cluster.doubts)],
    );
  } else {
    const behind = cluster.behind_us > 0 ? `behind for ${micros(cluster.behind_us)}` : null;
    facts.push(
      ["Lag", behind ?? spread(cluster.lag_us, "nothing new in the last second")],
      ["Not heard of when it last asked", plural(cluster.lag_entries, "entry", "entries")],
    );
  }
  facts.push(["etcd’s size", sizeOf(cluster)]);
  return facts;
}

/** How long things took in the last second. */
function spread(percentiles, none) {
  if (percentiles.count === 0) return none;
  return `${micros(percentiles.p50)}, 99 % below ${micros(percentiles.p99)}`;
}

function sizeOf(cluster) {
  if (cluster.etcd_bytes === 0) return "not known yet";
  const quota = cluster.etcd_quota_bytes;
  const share = quota > 0 ? `, ${((100 * cluster.etcd_in_use_bytes) / quota).toFixed(1)} % of ${bytes(quota)}` : "";
  return `${bytes(cluster.etcd_in_use_bytes)} of ${bytes(cluster.etcd_bytes)} in use${share}`;
}
