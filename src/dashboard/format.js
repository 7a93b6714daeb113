// Numbers and names as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const UNKNOWN = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? whole.format(value) : UNKNOWN;
}

/** At most three figures: 12,345 is 12.3K. */
export function figure(value) {
  if (!isNumber(value)) return UNKNOWN;
  return Math.abs(value) < 10000 ? whole.format(value) : short.format(value);
}

/** Events per second: small ones with a figure behind the point. */
export function rate(value) {
  if (!isNumber(value)) return UNKNOWN;
  return value > 0 && value < 9.95 ? value.toFixed(1) : figure(value);
}

export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${three.format(value / 1024 ** power)} ${units[power]}`;
}

export function micros(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 1000) return `${three.format(value)} µs`;
  if (value < 1e6) return `${three.format(value / 1000)} ms`;
  return `${three.format(value / 1e6)} s`;
}

/** A time that passes: 4.2 s, 42 s, 12 min 03 s, 3 h 07 min, 4 d 3 h. */
export function duration(ms) {
  if (!isNumber(ms)) return UNKNOWN;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function kindOf(lock) {
  if (lock.kind === "semaphore") return `semaphore of ${count(lock.limit)}`;
  if (lock.kind === "rwlock") return "read-write lock";
  return "lock";
}

/** Who holds or waits: the name it gave itself, otherwise its connection. */
export function nameOf(someone) {
  if (someone.owner) return someone.owner;
  if (someone.connection != null) return `connection ${someone.connection}`;
  return someone.restored ? "not claimed since the restart" : "unknown";
}

/** A number of bytes, which may be too large for a double: exact. */
export function number(value) {
  return whole.format(BigInt(value));
}

/** Which bytes a range lock has. */
export function bytesOf({ start, len }) {
  const [first, length] = [BigInt(start), BigInt(len)];
  if (length === 0n) return first === 0n ? "all bytes" : `bytes ${number(first)} to the end`;
  if (length === 1n) return `byte ${number(first)}`;
  return `bytes ${number(first)} to ${number(first + length - 1n)}`;
}

export function modeOf({ mode }) {
  return mode === "ex" ? "exclusive" : "shared";
}

/** For whom bytes are locked: the client, and the owner that it locks for. */
export function ownerOf({ client, owner }) {
  const who = client === null ? "unknown" : client.replace(/^#/, "connection ");
  return owner ? `${who} ${owner}` : who;
}

/** A name as a part of a path. */
export function inPath(name) {
  return encodeURIComponent(name.toWellFormed?.() ?? name);
}

/** Where the page of a lock is. */
export function lockPage(name) {
  return `#/locks/${inPath(name)}`;
}

/** Where the page of a resource is. */
export function rangePage(name) {
  return `#/ranges/${inPath(name)}`;
}
