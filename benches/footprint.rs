//! What the daemon weighs and how punctual it is: memory per idle connection and per held lock, the
//! lateness of leases among a million others, the cost of leaving a long queue from the middle.
//!
//! Starts the real binary on loopback and prints a table; asserts nothing about time, because
//! machines are noisy. `cargo bench --bench footprint`; with `--test`, small and quick.

#![allow(
    clippy::unwrap_used,
    reason = "a measurement that cannot go on has to stop"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How much of everything.
struct Sizes {
    idle_connections: usize,
    held_locks: usize,
    leases_timed: usize,
    waiters: usize,
    rounds: usize,
}

const FULL: Sizes = Sizes {
    idle_connections: 10_000,
    held_locks: 1_000_000,
    leases_timed: 200,
    waiters: 10_000,
    rounds: 5,
};
const QUICK: Sizes = Sizes {
    idle_connections: 200,
    held_locks: 10_000,
    leases_timed: 5,
    waiters: 200,
    rounds: 1,
};

/// Requests on their way at once while filling.
const PIPELINE: usize = 500;

fn main() {
    let quick = std::env::args().any(|it| it == "--test");
    let sizes = if quick { QUICK } else { FULL };
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
    println!("{:<58} {:>16}   goal", "what", "measured");
    idle_connections(&sizes);
    held_locks(&sizes);
    leaving_the_middle(&sizes);
}

fn row(what: &str, measured: &str, goal: &str) {
    println!("{what:<58} {measured:>16}   {goal}");
}

fn idle_connections(sizes: &Sizes) {
    let daemon = Daemon::start();
    let mut control = daemon.connect();
    let count = sizes.idle_connections;
    let before = daemon.rss_bytes();
    let connections: Vec<Client> = (0..count).map(|_| daemon.connect()).collect();
    control.wait_until(&format!("{{\"connections\":{}", count + 1));
    let each = (daemon.rss_bytes() - before) / count;
    row(
        &format!("bytes per idle connection, {count}"),
        &each.to_string(),
        "<= 1024",
    );
    drop(connections);
}

fn held_locks(sizes: &Sizes) {
    let daemon = Daemon::start();
    let mut control = daemon.connect();
    let count = sizes.held_locks;
    let before = daemon.rss_bytes();
    let start = Instant::now();
    let mut holder = daemon.connect();
    for first in (0..count).step_by(PIPELINE) {
        let batch = first..(first + PIPELINE).min(count);
        let frames: String = batch
            .clone()
            .map(|it| format!("l\njob:{it:08}\n0 3600\n"))
            .collect();
        holder
            .stream
            .get_ref()
            .write_all(frames.as_bytes())
            .unwrap();
        for _ in batch {
            assert!(holder.read().starts_with("ok "));
        }
        progress("locks held", first + PIPELINE, count);
    }
    let each = (daemon.rss_bytes() - before) / count;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    row(
        &format!("bytes per held lock with lease, {count}"),
        &each.to_string(),
        "<= 250",
    );
    row(
        "locks filled per second, one connection, pipelined",
        &format!("{rate:.0}"),
        "",
    );
    lateness(&daemon, &mut control, sizes);
}

/// A short lease ends and a waiter is told, while a million other leases run.
fn lateness(daemon: &Daemon, holder: &mut Client, sizes: &Sizes) {
    const LEASE: Duration = Duration::from_millis(20);
    let mut waiter = daemon.connect();
    let mut late_us = Vec::new();
    let mut early = 0;
    for _ in 0..sizes.leases_timed {
        let asked = Instant::now();
        holder.ask("l\nshort\n5 20ms\n");
        let answer = waiter.ask("l\nshort\n5\n");
        // Counted from before the request was sent, so the true figure is a little smaller, and
        // what looks early here is early beyond doubt.
        match asked.elapsed().checked_sub(LEASE) {
            Some(late) => late_us.push(late.as_micros()),
            None => early += 1,
        }
        let token = answer.split(' ').nth(1).unwrap();
        assert_eq!(waiter.ask(&format!("r\nshort\n{token}\n")), "ok");
    }
    late_us.sort_unstable();
    let at = |percent: usize| format!("{} us", late_us[(late_us.len() - 1) * percent / 100]);
    let others = sizes.held_locks;
    row(
        &format!("lease of 20 ms late by, p50, among {others} others"),
        &at(50),
        "",
    );
    row("                          p99", &at(99), "a few ms");
    row("                          most", &at(100), "");
    row("leases ended early", &early.to_string(), "0");
}

/// Closes connections that wait in the middle of one long queue, and as many that wait alone.
fn leaving_the_middle(sizes: &Sizes) {
    let daemon = Daemon::start();
    let mut control = daemon.connect();
    let count = sizes.waiters;
    let mut ratios = Vec::new();
    for round in 0..sizes.rounds {
        let one_queue = time_to_leave(&daemon, &mut control, count, |_| format!("queue{round}"));
        let own_queues = time_to_leave(&daemon, &mut control, count, |i| format!("own{round}:{i}"));
        ratios.push(one_queue.as_secs_f64() / own_queues.as_secs_f64());
        progress("rounds", round + 1, sizes.rounds);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let median = format!("{:.2}", ratios[ratios.len() / 2]);
    let what = format!("leaving the middle of {count} waiters / leaving {count} queues");
    row(&what, &median, "about 1");
}

fn time_to_leave(
    daemon: &Daemon,
    control: &mut Client,
    count: usize,
    key: impl Fn(usize) -> String,
) -> Duration {
    let mut holder = daemon.connect();
    for index in 0..count {
        let key = key(index);
        holder.ask(&format!("l\n{key}\n0 3600\n")); // `timeout` where one queue is shared
    }
    let mut waiters: Vec<Client> = (0..count)
        .map(|index| {
            let mut client = daemon.connect();
            assert_eq!(client.ask(&format!("e\n{}\n\n", key(index))), "queued");
            client
        })
        .collect();
    // From the middle outwards: the worst order for a queue that has to be searched.
    let start = Instant::now();
    while !waiters.is_empty() {
        waiters.remove(waiters.len() / 2);
    }
    control.wait_until("{\"connections\":2");
    let elapsed = start.elapsed();
    drop(holder);
    control.wait_until("{\"connections\":1");
    elapsed
}

fn progress(what: &str, done: usize, of: usize) {
    if done.is_multiple_of(PIPELINE * 100) || done < 10 {
        eprint!("\r{what}: {} of {of}    ", done.min(of));
    }
    if done >= of {
        eprint!("\r{:40}\r", "");
    }
}

/// The real binary, ended when dropped.
struct Daemon {
    child: Child,
    port: u16,
}

impl Daemon {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_latchd"))
            .args([
                "--port=0",
                "--http-port=off",
                "--read-timeout=3600",
                "--max-locks=0",
            ])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line.trim().rsplit(':').next().unwrap().parse().unwrap();
        Self { child, port }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            stream: BufReader::with_capacity(4096, stream),
        }
    }

    fn rss_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<usize>()
            .unwrap()
            * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn ask(&mut self, frame: &str) -> String {
        self.stream.get_ref().write_all(frame.as_bytes()).unwrap();
        self.read()
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the daemon closed the connection");
        line.truncate(line.len() - 1);
        line
    }

    /// Asks for `stats` until the answer contains `text`.
    fn wait_until(&mut self, text: &str) {
        while !self.ask("stats\n_\n_\n").contains(text) {}
    }
}
