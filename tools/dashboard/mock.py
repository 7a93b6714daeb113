#!/usr/bin/env python3
"""A server with made-up data that speaks what the dashboard needs, to work on the page without a daemon.

    tools/dashboard/mock.py [--mode MODE] [--port PORT] [--token TOKEN]

MODE is one of
    empty         nobody has used the daemon yet
    busy          locks of all kinds, moving; two clients that wait for each other; a name that is HTML
    crowd         more waiting clients than can be drawn
    unauthorised  busy, with the token `secret`
    draining      busy, and shutting down
    grace         busy, after a restart: range locks are kept for those who held them
    leader        busy, and the leader of a cluster
    standby       a member of a cluster that follows, and says where the leader is
    leaderless    the same, and nobody leads
    gone          busy for five seconds, then the process ends

The page is read from src/dashboard at every request, so a reload shows a change. Prints its address.
Locks are not kept by any rule here: what is shown is plausible, nothing more.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "dashboard"
OPENAPI = ROOT / "src" / "wire" / "http" / "openapi.json"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
# As in the daemon: entries of a lock in a list, and locks looked at for one page of it.
LISTED_MAX = 8
LOOKED_AT_MAX = 64
HTML_KEY = "<img/src=x/onerror=document.title='broken'>"
HTML_OWNER = "<b>mallory</b>"
HTML_RESOURCE = "<img/src=y/onerror=document.title='broken'>"
# Larger than a double can carry.
FAR = 2**53 + 1


class Someone:
    """A holder or a waiter."""

    fence = 1_000_000

    def __init__(self, owner, connection, mode="slot", lease_s=60.0, age_s=0.0, door="line", restored=False, client=None):
        Someone.fence += random.randint(1, 9)
        self.fence = Someone.fence
        self.owner, self.connection, self.mode, self.door, self.restored = owner, connection, mode, door, restored
        self.client = client
        self.since = time.monotonic() - age_s
        self.until = time.monotonic() + lease_s
        self.address = f"10.0.0.{connection % 250}:{40000 + connection}" if connection else None

    def common(self):
        client = {} if self.client is None else {"client": self.client}
        return {"owner": self.owner, **client, "connection": self.connection, "mode": self.mode,
                "since_ms": int(1000 * (time.monotonic() - self.since))}

    def holder(self):
        left = int(1000 * max(0, self.until - time.monotonic()))
        return {"fencing_token": self.fence, "address": self.address, **self.common(), "lease_left_ms": left, "restored": self.restored}

    def waiter(self, position):
        return {"position": position, **self.common()}


def shard(number, age_s=0.0):
    return Someone(f"shard-{number}", 100 + number, lease_s=random.uniform(3, 90), age_s=age_s)


class Range:
    """A range lock, or a wait for one."""

    def __init__(self, client, owner, mode, start, length, age_s=0.0, pending=False, waits_for=()):
        self.client, self.owner, self.mode, self.start, self.length, self.pending = client, owner, mode, start, length, pending
        self.since, self.waits_for = time.monotonic() - age_s, waits_for

    def shown(self, position=None):
        it = {"client": self.client, "owner": self.owner, "mode": self.mode, "start": self.start, "len": self.length,
              "pending": self.pending, "since_ms": int(1000 * (time.monotonic() - self.since))}
        return it if position is None else it | {"position": position, "waits_for": [{"client": client, "owner": owner} for client, owner in self.waits_for]}

    def overlaps(self, start, length):
        last = lambda start, length: start + length - 1 if length else 2**64 - 1
        return self.start <= last(start, length) and start <= last(self.start, self.length)


class Lock:
    def __init__(self, name, kind="lock", limit=1, holders=(), waiters=()):
        self.name, self.kind, self.limit = name, kind, limit
        self.holders, self.waiters = list(holders), list(waiters)

    def shown(self, most):
        return {"name": self.name, "kind": self.kind, "limit": self.limit,
                "holder_count": len(self.holders), "waiter_count": len(self.waiters),
                "holders": [it.holder() for it in self.holders[:most]],
                "waiters": [it.waiter(at) for at, it in enumerate(self.waiters[:most], 1)]}


class World:
    """What the daemon is said to keep; it moves in a thread of its own."""

    def __init__(self, mode, token):
        self.mode, self.token, self.guard = mode, token, threading.Lock()
        self.start, self.locks = time.monotonic(), {}
        self.connections = {}
        self.ranges = {}
        self.totals = dict.fromkeys(["grants", "releases", "expiries", "disconnects", "breaks"], 0)
        self.wobble = 0.0
        # Who follows has figures of its own only.
        self.follows = mode in ("standby", "leaderless")
        if mode != "empty" and not self.follows:
            self.scene()
            threading.Thread(target=self.move, daemon=True).start()
        if mode == "crowd":
            self.crowd()

    def add(self, lock):
        self.locks[lock.name] = lock
        for it in lock.holders + lock.waiters:
            if it.connection:
                self.connections[it.connection] = it
        self.totals["grants"] += len(lock.holders)

    def scene(self):
        """What the browser's test looks for; it makes the same with a daemon."""
        self.add(Lock("orders", holders=[Someone("worker-1", 11, lease_s=300, age_s=95)],
                      waiters=[Someone("worker-2", 12, age_s=41), Someone("worker-3", 13, age_s=12)]))
        self.add(Lock("ledger", holders=[Someone("batch-1", 21, lease_s=300, age_s=33)], waiters=[Someone("batch-2", 22, age_s=30)]))
        # A client that has bytes, too, and whose connection has a name of its own.
        self.add(Lock("exports", holders=[Someone("worker-9", 23, lease_s=300, age_s=41)], waiters=[Someone("nightly", 24, age_s=40, client="gw/6")]))
        self.add(Lock("stock", holders=[Someone("batch-2", 22, lease_s=280, age_s=32)], waiters=[Someone("batch-1", 21, age_s=31)]))
        self.add(Lock("gpu", "semaphore", 4, [Someone(f"train-{n}", 30 + n, lease_s=200 + 90 * n, age_s=60 * n) for n in (1, 2, 3)]))
        self.add(Lock("catalogue", "rwlock", 0, [Someone("reader-1", 41, "read", 300, 4), Someone("reader-2", 42, "read", 300, 3)],
                      [Someone("writer-1", 43, "write", age_s=2)]))
        self.add(Lock(HTML_KEY, holders=[Someone(HTML_OWNER, 51, lease_s=300, age_s=9)]))
        self.add(Lock("nightly", holders=[Someone("cron", None, lease_s=300, age_s=7200, door="http")],
                      waiters=[Someone("cron-2", 61, age_s=55, door="http")]))
        self.scene_of_ranges()
        if self.mode == "crowd":
            return
        self.add(Lock("before", holders=[Someone(None, None, lease_s=25, restored=True)]))
        self.add(Lock("leader/eu-west", holders=[Someone("node-a", 71, "lead", 15, 86_400 * 3)],
                      waiters=[Someone("node-b", 72, "lead", age_s=86_000), Someone("node-c", 73, "lead", age_s=500)]))
        for n in range(260):
            self.add(Lock(f"tenant-{n:03}/index", holders=[shard(random.randrange(17), age_s=random.uniform(0, 40))]))
        for n in range(17):
            self.connections[100 + n] = shard(n, age_s=5000 + 31 * n)

    def scene_of_ranges(self):
        is_restart = self.mode == "grace"
        self.ranges["a.db"] = (
            [Range("gw/1", "alice", "ex", 0, 4096, 75, is_restart), Range("gw/1", "carol", "sh", 4096, 8192, 60),
             Range("gw/2", "bob", "sh", 4096, 4096, 50), Range("gw/3", "", "sh", FAR, 0, 20)],
            [Range("gw/2", "dave", "ex", 0, 10, 12, waits_for=[("gw/1", "alice")]),
             Range("gw/4", "erin", "sh", 5, 1, 6, waits_for=[("gw/1", "alice"), ("gw/2", "dave")])])
        self.ranges[HTML_RESOURCE] = ([Range("gw/5", HTML_OWNER, "ex", 7, 1, 4)], [])
        self.ranges["b.db"] = ([Range("gw/6", "", "ex", 0, 10, 45)], [Range("gw/7", "", "ex", 0, 10, 3, waits_for=[("gw/6", "")])])
        self.ranges["mail/inbox"] = ([Range("#11", "", "ex", 0, 0, 95)], [])

    def page_of_ranges(self, query):
        limit, start = number(query, "limit", 100, 1, 1000), number(query, "after", 0, 0, 10**9)
        contains = query.get("contains", [""])[0]
        with self.guard:
            found = [{"resource": name, "lock_count": len(locks), "waiter_count": len(waiters)}
                     for name, (locks, waiters) in self.ranges.items() if contains in name and (locks or waiters)]
            following = str(start + limit) if start + limit < len(found) else None
            return {"resources": found[start:start + limit], "next": following}

    def ranges_of(self, name):
        with self.guard:
            locks, waiters = self.ranges.get(name, ([], []))
            return {"resource": name, "lock_count": len(locks), "waiter_count": len(waiters), "locks": [it.shown() for it in locks],
                    "waiters": [it.shown(at) for at, it in enumerate(waiters, 1)]}

    def waits(self):
        with self.guard:
            label = lambda client, owner: f"{client} {owner}".strip()
            edges = [{"waiter": label(it.client, it.owner), "waits_for": label(*whom), "on": name, "kind": "range"}
                     for name, (_, waiters) in self.ranges.items() for it in waiters for whom in it.waits_for]
            return {"edges": edges, "waiting": len(edges)}

    def break_ranges(self, name, start, length):
        with self.guard:
            locks, waiters = self.ranges.get(name, ([], []))
            broken = [it for it in locks if it.overlaps(start, length)]
            for it in broken:
                locks.remove(it)
            if broken and waiters:
                following = waiters.pop(0)
                locks.insert(0, Range(following.client, following.owner, following.mode, following.start, following.length))
            return len(broken)

    def crowd(self):
        for n in range(30):
            waiters = [Someone(f"client-{n}-{k}", 1000 + 20 * n + k, age_s=k) for k in range(1 + n % 12)]
            self.add(Lock(f"hot-{n}", holders=[Someone(f"holder-{n // 3}", 900 + n // 3, lease_s=300)], waiters=waiters))

    def move(self):
        moving = [lock for lock in self.locks.values() if "tenant-" <= lock.name < "tenant-130"]
        while True:
            time.sleep(0.1)
            with self.guard:
                self.wobble = 0.9 * self.wobble + random.gauss(0, 6)
                grants = max(0, int(42 + self.wobble))
                self.totals["grants"] += grants
                self.totals["releases"] += max(0, grants - random.randint(0, 3))
                self.totals["expiries"] += random.random() < 0.2
                for lock in random.sample(moving, 8) if moving else []:
                    lock.holders = [] if random.random() < 0.3 else [shard(random.randrange(17))]
                    is_wanted = lock.holders and lock.name < "tenant-012"
                    lock.waiters = [shard(17 + n) for n in random.sample(range(12), random.choice([0, 1, 2, 5]))] if is_wanted else []

    def held(self):
        return sum(len(lock.holders) for lock in self.locks.values())

    def stats(self):
        with self.guard:
            in_use = {kind: sum(1 for it in self.locks.values() if it.kind == kind and (it.holders or it.waiters)) for kind in ("lock", "semaphore", "rwlock")}
            is_empty = self.mode == "empty" or self.follows
            latency = 38 + abs(self.wobble)
            return {
                "version": "0.1.0", "epoch": 17, "uptime_ms": int(1000 * (time.monotonic() - self.start)) + (0 if is_empty else 371_000_000),
                "draining": self.mode == "draining", "line_port": 6388,
                "connections": 1 if is_empty else len(self.connections) + 1 + int(abs(self.wobble) / 8),
                "held": self.held(), "waiting": sum(len(lock.waiters) for lock in self.locks.values()),
                "op_latency_us": percentiles(0 if is_empty else 420, latency),
                "turn_us": percentiles(3 if is_empty else 300, 0.6 * latency),
                "cluster": self.cluster(),
                "totals": {
                    "locks": in_use["lock"], "semaphores": in_use["semaphore"], "rw_locks": in_use["rwlock"],
                    "idle_locks": sum(1 for it in self.locks.values() if not it.holders), "idle_semaphores": 0, "idle_rw_locks": 0,
                    "counters": 0 if is_empty else 12, "kv_entries": 0 if is_empty else 340, "lists": 0 if is_empty else 3,
                    "signal_channels": 0 if is_empty else 5, "watch_channels": 0, "barriers": 0,
                    "range_resources": len(self.ranges), "range_locks": sum(len(locks) for locks, _ in self.ranges.values()),
                    "range_waiters": sum(len(waiters) for _, waiters in self.ranges.values()),
                    "grace_left_ms": max(0, 83_000 - int(1000 * (time.monotonic() - self.start))) if self.mode == "grace" else 0,
                    "grace_clients_expected": 3 if self.mode == "grace" else 0, "grace_clients_done": 2 if self.mode == "grace" else 0,
                    "slow_consumers": 0, "wrong_secrets": 0, "forbidden": 0, "lost_log_lines": 0, "holds": self.held(), "holds_max": 10_000_000,
                    "attached_clients": 0, "away_clients": 0, **self.totals,
                    "memory_bytes": int(180_000 if is_empty else 71e6 + 40_000 * self.wobble), "memory_max_bytes": 1 << 30, "outbox_bytes": 0,
                    "epoch": 17, "records": 3 * self.totals["grants"], "records_waiting": 0,
                    "longest_turn_us": 850, "longest_turn_work_us": {"read": 200, "decide": 310, "expire": 12, "depart": 0, "write": 240},
                },
            }

    def cluster(self):
        """What a member says of its cluster; nothing if there is none."""
        if self.mode not in ("leader", "standby", "leaderless"):
            return None
        leads = self.mode == "leader"
        host = None if self.mode == "leaderless" else "10.0.0.11"
        return {
            "role": "leader" if leads else "standby",
            "leader": host and f"{host}:6388", "leader_http": host and f"http://{host}:6389",
            "shard": 1, "shards": 2, "epoch": 4, "log_entry": 1_234_567, "lag_entries": 0 if leads else 2,
            "lag_us": percentiles(0 if leads else 40, 300), "behind_us": 0,
            "commits": 8_214 if leads else 0, "commit_us": percentiles(410 if leads else 0, 2_300),
            "doubts": 1 if leads else 0, "snapshots": 12 if leads else 0,
            "etcd_bytes": 62_000_000, "etcd_in_use_bytes": 25_000_000, "etcd_quota_bytes": 2 << 30,
        }

    def page_of_locks(self, query):
        limit = number(query, "limit", 100, 1, 1000)
        contains = query.get("contains", [""])[0]
        states = query.get("state", ["held,waiting"])[0].split(",")
        start = number(query, "after", 0, 0, 10**9)
        with self.guard:
            names, found, at = list(self.locks), [], start
            while at < min(len(names), start + LOOKED_AT_MAX) and len(found) < limit:
                lock = self.locks[names[at]]
                at += 1
                fits = ("held" in states and lock.holders) or ("waiting" in states and lock.waiters)
                if fits and contains in lock.name:
                    found.append(lock.shown(LISTED_MAX))
            return {"locks": found, "next": str(at) if at < len(names) else None}

    def page_of_connections(self, query):
        limit, start = number(query, "limit", 100, 1, 1000), number(query, "after", 0, 0, 10**9)
        with self.guard:
            every = sorted(self.connections.items())
            lists = [(lock.holders, lock.waiters) for lock in self.locks.values()]
            rows = []
            for connection, it in every[start:start + limit]:
                mine = lambda people: sum(1 for one in people if one.connection == connection)
                rows.append({"connection": connection, "address": it.address, "name": it.owner, "door": it.door,
                             "age_ms": it.common()["since_ms"] + 1500, "held": sum(mine(holders) for holders, _ in lists),
                             "waiting": sum(mine(waiters) for _, waiters in lists)})
            return {"connections": rows, "next": str(start + limit) if start + limit < len(every) else None}

    def who(self, name):
        if any(ord(it) < 32 for it in name):
            raise Refusal(400, "the name holds a control character; leave it out", "BAD_NAME")
        with self.guard:
            lock = self.locks.get(name)
            if lock is None:
                return {"name": name, "kind": None, "limit": 0, "holder_count": 0, "waiter_count": 0, "holders": [], "waiters": []}
            return lock.shown(1000)

    def break_hold(self, name, fence):
        with self.guard:
            lock = self.locks.get(name)
            broken = [it for it in lock.holders if str(it.fence) == fence] if lock else []
            for it in broken:
                lock.holders.remove(it)
                self.totals["breaks"] += 1
                if lock.waiters and lock.kind == "lock":
                    following = lock.waiters.pop(0)
                    lock.holders.append(Someone(following.owner, following.connection, following.mode, 300, door=following.door))
            return bool(broken)


class Refusal(Exception):
    def __init__(self, status, error, reason=None):
        self.status, self.body = status, {"error": error} | ({"reason": reason} if reason else {})


def number(query, name, otherwise, least, most):
    text = query.get(name, [str(otherwise)])[0]
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise Refusal(400, f"{name} has to be a whole number from {least} to {most}", "BAD_QUERY")
    return int(text)


def percentiles(count, p50):
    if count == 0:
        return {"count": 0, "p50": 0, "p99": 0, "max": 0}
    return {"count": count, "p50": round(p50), "p99": round(3.2 * p50), "max": round(4.5 * p50 + random.randint(0, 90))}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "latchd-mock", ""

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json", more=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *more):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.handle_request()

    def do_DELETE(self):
        self.handle_request()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.handle_request()

    do_PUT = do_POST

    def handle_request(self):
        try:
            self.dispatch()
        except Refusal as refusal:
            more = [("WWW-Authenticate", "Bearer")] if refusal.status == 401 else []
            self.answer(refusal.status, refusal.body, more=more)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def dispatch(self):
        world, url = self.server.world, urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        if url.path == "/" or parts[0] == "assets":
            return self.file("index.html" if url.path == "/" else "/".join(parts[1:]))
        if url.path == "/v1/openapi.json":
            return self.answer(200, OPENAPI.read_bytes())
        if url.path in ("/livez", "/healthz", "/health", "/readyz", "/ready"):
            is_late = world.mode == "draining" and "ready" in url.path
            return self.answer(503 if is_late else 200, {"status": "draining" if is_late else "ok"})
        if world.token is not None and self.headers.get("Authorization") != f"Bearer {world.token}":
            time.sleep(0.1)
            raise Refusal(401, "the token is missing or wrong: send Authorization: Bearer <token>")
        if world.follows and parts[:2] != ["v1", "stats"] and parts[0] != "metrics":
            # The page must not even ask.
            raise Refusal(503, "another member of this cluster decides", "NOT_LEADER")
        match (self.command, *parts):
            case ("GET", "v1", "stats"):
                self.answer(200, world.stats())
            case ("GET", "v1", "stats", "stream"):
                self.stream()
            case ("GET", "v1", "locks"):
                self.answer(200, world.page_of_locks(query))
            case ("GET", "v1", "who", name):
                self.answer(200, world.who(name))
            case ("GET", "v1", "connections"):
                self.answer(200, world.page_of_connections(query))
            case ("GET", "v1", "waits"):
                self.answer(200, world.waits())
            case ("GET", "v1", "ranges"):
                self.answer(200, world.page_of_ranges(query))
            case ("GET", "v1", "ranges", name):
                self.answer(200, world.ranges_of(name))
            case ("DELETE", "v1", "ranges", name, "locks"):
                self.answer(200, {"broken": world.break_ranges(name, number(query, "start", 0, 0, 2**64 - 1), number(query, "len", 0, 0, 2**64 - 1))})
            case ("DELETE", "v1", "locks", name, "holders", fence):
                if not world.break_hold(name, fence):
                    raise Refusal(404, "nobody holds this lock with this fence; ask who holds it", "NOT_HELD")
                self.answer(200, {"broken": True})
            case ("GET", "metrics"):
                self.answer(200, f"locks_held {world.held()}\n".encode(), "text/plain; version=0.0.4; charset=utf-8")
            case _:
                raise Refusal(404, "the mock does not speak this route", "NOT_FOUND")

    def file(self, name):
        path = PAGE / name
        if path.parent != PAGE or path.suffix not in TYPES or not path.is_file():
            raise Refusal(404, "there is no such file")
        self.answer(200, path.read_bytes(), TYPES[path.suffix], [("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer")])

    def stream(self):
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("Transfer-Encoding", "chunked")):
            self.send_header(name, value)
        self.end_headers()
        while True:
            data = f"event: stats\ndata: {json.dumps(self.server.world.stats())}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            time.sleep(1)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # A test stops the mock and starts it again at the same port.
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        """A browser that leaves in the middle of something is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="busy", choices=["empty", "busy", "crowd", "unauthorised", "draining", "grace", "leader", "standby", "leaderless", "gone"])
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--token")
    args = parser.parse_args()
    random.seed(7)
    server = Server(("127.0.0.1", args.port), Handler)
    server.world = World(args.mode, args.token or ("secret" if args.mode == "unauthorised" else None))
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    if args.mode == "gone":
        threading.Timer(5, lambda: os._exit(0)).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
