// The page: which view is shown, and above it whether the server is there and lets us in.

import { remember } from "./charts.js";
import { follows, roleOf, showMember } from "./cluster.js";
import { connections } from "./connections.js";
import { say, showLeft, tickTimes } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { lock } from "./lock.js";
import { locks } from "./locks.js";
import { overview } from "./overview.js";
import { range } from "./range.js";
import { ranges } from "./ranges.js";
import {
  connect,
  currentState,
  forgetToken,
  hasToken,
  lastTrouble,
  latestStats,
  nextAttemptAt,
  onRefusal,
  onState,
  onStats,
  tokenWasRefused,
  useToken,
} from "./server.js";
import { waits } from "./waits.js";

const TICK_MS = 250;
const THEMES = { system: "as the system", light: "light", dark: "dark" };

const byId = (id) => document.getElementById(id);
const main = byId("view");
let view = null;
let isFollower = false;

// Views

function route() {
  const [path, query] = (location.hash.replace(/^#/, "") || "/").split("?", 2);
  const parameters = new URLSearchParams(query);
  const name = /^\/locks\/(.+)$/s.exec(path)?.[1];
  if (name !== undefined) return ["locks", (place) => lock(place, decode(name))];
  const resource = /^\/ranges\/(.+)$/s.exec(path)?.[1];
  if (resource !== undefined) return ["ranges", (place) => range(place, decode(resource))];
  if (path === "/ranges") return ["ranges", (place) => ranges(place, parameters)];
  if (path === "/locks") return ["locks", (place) => locks(place, parameters)];
  if (path === "/waits") return ["waits", waits];
  if (path === "/connections") return ["connections", connections];
  return ["overview", overview];
}

/** An address somebody typed may be anything. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  view?.stop();
  byId("refused").hidden = true;
  main.replaceChildren();
  const [name, open] = route();
  view = open(main);
  document.title = `${view.title} · latchd`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

addEventListener("hashchange", () => {
  byId("break-dialog").close();
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});

// The server

const STATES = {
  connecting: "Connecting",
  live: "Live",
  gone: "Not connected",
  unauthorised: "Locked",
  paused: "Paused",
};

function showState(state) {
  const isDraining = state === "live" && latestStats()?.draining === true;
  document.body.dataset.state = isDraining ? "draining" : state;
  const role = state === "live" ? roleOf(latestStats()) : null;
  say(byId("state"), isDraining ? "Shutting down" : STATES[state] + (role === null ? "" : `, ${role}`));
  byId("gone").hidden = state !== "gone";
  byId("draining").hidden = !isDraining;
  byId("login").hidden = state !== "unauthorised";
  byId("login-error").hidden = !tokenWasRefused();
  byId("forget").hidden = !hasToken();
  // A link cannot show the token.
  byId("metrics").hidden = hasToken() || state === "unauthorised";
  main.hidden = state === "unauthorised";
  main.inert = state === "gone";
  main.classList.toggle("is-stale", state === "gone");
  if (state === "unauthorised") byId("token").focus();
  if (state === "gone") showGone();
}

function showGone() {
  const wasDraining = latestStats()?.draining === true;
  const trouble = lastTrouble();
  const left_ms = nextAttemptAt() - performance.now();
  const what = wasDraining
    ? "The daemon has shut down."
    : trouble
      ? `The server answers, but not with figures: ${trouble}`
      : "The server does not answer.";
  const data = latestStats() === null ? "" : " What you see is what it said last.";
  say(byId("gone-text"), what + data);
  say(byId("gone-next"), left_ms > 0 ? `Next attempt in ${Math.ceil(left_ms / 1000)} s.` : "Trying…");
}

/** After a restart, as long as it lasts. */
function showGrace(totals) {
  const isActive = totals.grace_left_ms > 0;
  byId("grace").hidden = !isActive;
  if (!isActive) return;
  const [done, expected] = [totals.grace_clients_done, totals.grace_clients_expected];
  say(byId("grace-text"), `${count(done)} of ${plural(expected, "client", "clients")} done.`);
  showLeft(byId("grace-left"), totals.grace_left_ms);
}

onState(showState);
onRefusal((why) => {
  byId("refused").hidden = why === null;
  say(byId("refused-text"), why ?? "");
});
onStats((stats) => {
  remember(stats);
  if (follows(stats) !== isFollower) {
    // What is shown of locks is not this server's any more, or is its own now.
    isFollower = follows(stats);
    show();
  }
  view?.stats?.(stats);
  showState(currentState());
  showMember(byId("member"), stats);
  // Who follows has a copy that nobody may ask, and figures of its own only.
  const figure = (value) => (follows(stats) ? "" : count(value));
  say(byId("nav-locks"), figure(stats.totals.locks + stats.totals.semaphores + stats.totals.rw_locks));
  say(byId("nav-ranges"), figure(stats.totals.range_locks));
  say(byId("nav-waits"), figure(stats.waiting));
  showGrace(stats.totals);
  say(byId("nav-connections"), count(stats.connections));
  say(byId("foot"), `latchd ${stats.version}, up ${duration(stats.uptime_ms)}`);
});
setInterval(() => {
  if (document.hidden) return;
  if (currentState() === "gone") showGone();
  else {
    tickTimes(main);
    tickTimes(byId("grace"));
  }
}, TICK_MS);

// The address of a view is behind the `#`, so this link must not go there.
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
byId("retry").addEventListener("click", connect);
byId("forget").addEventListener("click", forgetToken);
byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("token");
  if (field.value !== "") useToken(field.value);
  field.value = "";
});

// Light and dark

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  button.title = `Colours: ${THEMES[theme]}`;
  button.dataset.theme = theme;
  if (latestStats() !== null) view?.stats?.(latestStats());
}

const keptTheme = () =>
  Object.hasOwn(THEMES, localStorage.getItem("latchd-theme") ?? "") ? localStorage.getItem("latchd-theme") : "system";
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(keptTheme()) + 1) % names.length];
  localStorage.setItem("latchd-theme", next);
  showTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showTheme(keptTheme()));

// Keys: `/` goes to the search of locks.

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, dialog");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!byId("search")) {
    location.hash = "#/locks";
    show();
  }
  byId("search")?.focus();
});

showTheme(keptTheme());
show();
connect();
