// The server, as the page knows it: token, requests, the stream of figures, and whether it is there.
//
// All requests of the page are made here. None is made while the page is hidden.

import { follows } from "./cluster.js";

const TOKEN_KEY = "latchd-token";
// An event comes every second; after so long without one the server counts as gone.
const SILENCE_MS = 6000;
const BACK_OFF_MS_FIRST = 500;
const BACK_OFF_MS_MAX = 15000;
// An event is about 2 KiB. A stream that sends so much without ending one is no stream of ours.
const EVENT_CHARS_MAX = 256 * 1024;

/** An answer that is not the one asked for. */
export class Refused extends Error {
  constructor(status, body) {
    super(typeof body?.error === "string" ? body.error : `the server answered ${status}`);
    this.status = status;
    this.reason = body?.reason ?? null;
  }
}

// connecting, live, gone, unauthorised, paused
let state = "connecting";
let latest = null;
let retryAt = 0;
let failures = 0;
let wasRefused = false;
let trouble = null;
let stream = null;
let tellRefusal = () => {};
const stateListeners = new Set();
const statsListeners = new Set();

export const currentState = () => state;
export const latestStats = () => latest;
/** When the next attempt is made, by the clock of `performance.now()`. */
export const nextAttemptAt = () => retryAt;
/** What the server said instead of figures, if it said anything. */
export const lastTrouble = () => trouble;
/** The last token shown was refused. */
export const tokenWasRefused = () => wasRefused;
export const hasToken = () => readToken() !== null;

function readToken() {
  return sessionStorage.getItem(TOKEN_KEY);
}

/** Keeps the token for this tab until it is closed, and tries it. */
export function useToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
  connect();
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN_KEY);
  connect();
}

/** Calls back with each change of state; returns how to stop that. */
export function onState(listener) {
  stateListeners.add(listener);
  return () => stateListeners.delete(listener);
}

/** Calls back with each document of figures, about one a second. */
export function onStats(listener) {
  statsListeners.add(listener);
  return () => statsListeners.delete(listener);
}

/** Calls back with why something could not be shown, or with `null` when it could. */
export function onRefusal(listener) {
  tellRefusal = listener;
}

function enter(next) {
  state = next;
  for (const listener of stateListeners) listener(state);
}

function ask(path, options = {}) {
  const headers = new Headers({ Accept: options.accept ?? "application/json" });
  const token = options.token ?? readToken();
  if (token !== null) {
    // A header carries bytes; this is how UTF-8 passes through.
    const bytes = new TextEncoder().encode(token);
    headers.set("Authorization", `Bearer ${String.fromCharCode(...bytes)}`);
  }
  return fetch(path, {
    method: options.method ?? "GET",
    headers,
    signal: options.signal,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    referrerPolicy: "no-referrer",
  });
}

/**
 * The JSON at `path`. Throws [Refused] for any status but 2xx, and what `fetch` throws. `token` is used
 * instead of the one that is kept; with `mayBeUnauthorised` the caller handles 401 itself. With `isExact`
 * numbers of more than 15 digits are strings, because a double cannot carry them.
 */
export async function getJson(path, options = {}) {
  const answer = await ask(path, options);
  let body = null;
  try {
    body = options.isExact ? exactly(await answer.text()) : await answer.json();
  } catch (error) {
    if (answer.ok || error.name === "AbortError") throw error;
  }
  if (answer.status === 401 && !options.mayBeUnauthorised) unauthorised();
  if (!answer.ok) throw new Refused(answer.status, body);
  return body;
}

function exactly(text) {
  // A string is passed over as a whole, so that digits in it are not touched.
  return JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|\d{16,}/g, (found) => (found[0] === '"' ? found : `"${found}"`)));
}

/**
 * Follows a paged list until there are enough items, it ends, or so many answers were read: an answer
 * may be short although the list goes on. `query` begins with `&`. Items of the same key are one; `after`
 * is where to go on.
 */
export async function collect(path, field, keyOf, { wanted, answersMax, signal, onAnswer, query = "" }) {
  const found = new Map();
  let after = null;
  let answers = 0;
  do {
    const more = after === null ? "" : `&after=${encodeURIComponent(after)}`;
    const limit = Math.min(1000, wanted - found.size);
    const page = await getJson(`${path}?limit=${limit}${query}${more}`, { signal });
    for (const item of page[field]) found.set(keyOf(item), item);
    after = page.next ?? null;
    answers += 1;
    onAnswer?.([...found.values()], after);
  } while (after !== null && found.size < wanted && answers < answersMax);
  return { items: [...found.values()], after };
}

function unauthorised() {
  wasRefused = hasToken();
  sessionStorage.removeItem(TOKEN_KEY);
  drop();
  enter("unauthorised");
}

/** Leaves the stream if there is one, and follows a new one unless the page is hidden. */
export function connect() {
  drop();
  if (document.hidden) return enter("paused");
  failures = 0;
  attempt();
}

function drop() {
  if (stream === null) return;
  stream.controller.abort();
  clearTimeout(stream.timer);
  stream = null;
}

async function attempt() {
  const mine = { controller: new AbortController(), timer: 0 };
  stream = mine;
  if (state !== "gone") enter("connecting");
  const beAlert = () => {
    clearTimeout(mine.timer);
    mine.timer = setTimeout(() => mine.controller.abort(), SILENCE_MS);
  };
  beAlert();
  try {
    const signal = mine.controller.signal;
    const answer = await ask("/v1/stats/stream", { signal, accept: "text/event-stream" });
    if (answer.status === 401) {
      if (stream === mine) unauthorised();
      return;
    }
    if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => null));
    wasRefused = false;
    for await (const event of events(answer.body)) {
      if (stream !== mine) return;
      beAlert();
      if (event.name !== "stats") continue;
      latest = JSON.parse(event.data);
      failures = 0;
      if (state !== "live") enter("live");
      for (const listener of statsListeners) listener(latest);
    }
    trouble = null;
  } catch (error) {
    // The network's reasons are not told to pages; that it failed is all there is to know.
    trouble = error instanceof Refused ? error.message : null;
  }
  if (stream !== mine) return;
  clearTimeout(mine.timer);
  const backOff = Math.min(BACK_OFF_MS_MAX, BACK_OFF_MS_FIRST * 2 ** failures);
  const wait = backOff * (0.75 + Math.random() / 2);
  failures += 1;
  retryAt = performance.now() + wait;
  mine.timer = setTimeout(attempt, wait);
  enter("gone");
}

/** The events of a `text/event-stream`: name and data. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  let event = { name: "message", data: [] };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const lines = pending.split(/\r\n|\n|\r(?!$)/);
    pending = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length > 0) yield { name: event.name, data: event.data.join("\n") };
        event = { name: "message", data: [] };
        continue;
      }
      const [, field, text] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
      if (field === "event") event.name = text ?? "";
      if (field === "data") event.data.push(text ?? "");
    }
    if (pending.length > EVENT_CHARS_MAX) throw new Error("an event without end");
  }
}

/**
 * Does `task(signal)` again and again, `pause_ms` after each end, while the server is there and the
 * page is seen. A task that takes long is followed by a longer pause, so that a slow answer is not
 * asked for without end. Returns how to stop it; it has `now()` to do it at once.
 */
export function repeat(task, pause_ms) {
  let timer = 0;
  let controller = null;
  let stopped = false;
  const run = async () => {
    clearTimeout(timer);
    controller?.abort();
    // Who follows would only say that another one decides; when that changes the stream begins anew.
    if (stopped || state !== "live" || follows(latest)) return;
    const mine = new AbortController();
    controller = mine;
    const began = performance.now();
    try {
      await task(mine.signal);
      tellRefusal(null);
    } catch (error) {
      if (mine.signal.aborted) return;
      // Without an answer the stream ends too, and tells.
      if (error instanceof Refused && error.status !== 401) tellRefusal(error.message);
    }
    if (mine.signal.aborted || stopped) return;
    timer = setTimeout(run, Math.max(pause_ms, 5 * (performance.now() - began)));
  };
  const ignore = onState((next) => {
    if (next === "live") run();
    if (next === "paused" || next === "unauthorised") controller?.abort();
  });
  const stop = () => {
    stopped = true;
    clearTimeout(timer);
    controller?.abort();
    ignore();
  };
  run();
  return { stop, now: run };
}

document.addEventListener("visibilitychange", () => {
  if (state !== "unauthorised") connect();
});
