//! Random requests at both doors, from clients that have several connections: what a fuzzer would send.
//!
//! No answer is predicted here; `tests/engine/model` does that. The server must go on,
//! `Engine::check` looks at the table after every turn, and when all have left nothing may be left.

use fastrand::Rng;
use latchd::engine::Rules;
use latchd::server::Settings;

use crate::http_server::world::World;

const SEEDS: u64 = 160;
const STEPS: usize = 200;

/// The first three attach to one client, which others do as well now and then.
const LINES: usize = 6;
const HTTPS: usize = 2;

struct Fuzz {
    rng: Rng,
    world: World,
    /// Each with its number and whether it speaks HTTP.
    conns: Vec<(usize, bool)>,
    /// The kind of thing that all of them ask for, so that they meet.
    kind: u64,
    /// Tokens of the line protocol, and what names a lease over HTTP.
    tokens: Vec<String>,
    leases: Vec<String>,
}

#[test]
fn random_requests_of_clients_with_several_connections_leave_nothing_behind() {
    for seed in 0..SEEDS {
        println!("seed {seed}"); // the last one is shown if it fails
        let rules = Rules {
            deadlock_detection: seed % 2 == 1,
            auto_release: seed % 5 != 0,
            ..Rules::default()
        };
        let mut fuzz = Fuzz {
            kind: seed % 4,
            rng: Rng::with_seed(seed),
            world: World::with_rules(rules, Settings::default()),
            conns: Vec::new(),
            tokens: Vec::new(),
            leases: Vec::new(),
        };
        for nth in 0..LINES + HTTPS {
            fuzz.connect(nth);
        }
        for _ in 0..STEPS {
            fuzz.step();
        }
        fuzz.world.finish();
    }
}

impl Fuzz {
    fn connect(&mut self, nth: usize) {
        let is_http = nth >= LINES;
        let who = match is_http {
            true => self.world.http(),
            false => self.world.line(),
        };
        match self.conns.get_mut(nth) {
            Some(conn) => *conn = (who, is_http),
            None => self.conns.push((who, is_http)),
        }
        if nth < 3 {
            self.world.pipes.say(who, &["attach gw/1 1 s"]);
        }
    }

    fn step(&mut self) {
        let nth = self.rng.usize(..self.conns.len());
        let (who, is_http) = self.conns[nth];
        match self.rng.u8(..100) {
            0..3 => {
                self.world.leave(who);
                self.connect(nth);
            }
            3 => {
                let bytes: Vec<u8> = { 0..40 }.map(|_| self.rng.u8(..)).collect();
                self.world.send(who, bytes);
            }
            4..30 => {
                // The server is often late.
                let ms = self.rng.u64(1..=6);
                self.world.sleep(ms);
                if self.rng.bool() {
                    self.world.settle();
                }
            }
            _ => {
                let request = match is_http {
                    true => crate::http_server::world::spelled(&self.http_request()).into_bytes(),
                    false => latchd::wire::client::frame(&self.line_request()).into_bytes(),
                };
                self.world.pipes.send(who, &request);
                // Two requests may come in one turn.
                if self.rng.u8(..4) != 0 {
                    self.world.settle();
                }
            }
        }
        self.read();
    }

    /// Reads what all were told, and remembers what was granted.
    fn read(&mut self) {
        for nth in 0..self.conns.len() {
            let (who, is_http) = self.conns[nth];
            let told = self.world.pipes.read(who);
            if is_http {
                let leases = told.split("\"lease_id\":").skip(1).filter_map(|it| {
                    let it = it.split(&[',', '}'][..]).take(2).collect::<Vec<_>>();
                    Some(format!("\"lease_id\":{},{}", it.first()?, it.get(1)?))
                });
                self.leases.extend(leases);
            } else {
                let words = told.split_ascii_whitespace().filter(|it| it.len() == 32);
                self.tokens.extend(words.map(str::to_owned));
            }
            if self.world.is_ended(who) {
                self.connect(nth);
            }
        }
    }

    fn line_request(&mut self) -> String {
        let rng = &mut self.rng;
        let wait = rng.choice(["0", "1ms", "3ms", "9ms"]).unwrap();
        let lease = rng.choice(["1ms", "3ms", "9ms"]).unwrap();
        let token = rng.choice(self.tokens.iter()).map_or("x", |it| it);
        let requests: &[String] = match (rng.u8(..12), self.kind) {
            (0, _) => &[
                "hello _ keep=1".to_owned(),
                "hello _ deadlock=1".to_owned(),
                "attach gw/1 1 s".to_owned(),
                "attach gw/2 0 s".to_owned(),
                "detach gw/1 s".to_owned(),
                format!("bwait b 2 {wait}"),
            ],
            (_, 0) => &[
                format!("e k {lease}"),
                format!("w k {wait}"),
                format!("l k {wait} {lease}"),
                format!("elect k {wait} {lease}"),
                format!("r k {token}"),
                format!("n k {token} {lease}"),
                format!("resign k {token}"),
                "pos k".to_owned(),
                "break k".to_owned(),
            ],
            (_, 1) => &[
                format!("se s 2 {lease}"),
                format!("sw s {wait}"),
                format!("sl s {wait} 2 {lease}"),
                format!("sr s {token}"),
                format!("sn s {token} {lease}"),
                "who s".to_owned(),
            ],
            (_, 2) => &[
                format!("re rw {lease}"),
                format!("we rw {lease}"),
                format!("rw rw {wait}"),
                format!("ww rw {wait}"),
                format!("rl rw {wait} {lease}"),
                format!("wl rw {wait} {lease}"),
                format!("rr rw {token}"),
                format!("wn rw {token} {lease}"),
            ],
            _ => &[
                format!("rangelock f ex 0 10 {wait}"),
                format!("rangelock f sh 5 10 {wait}"),
                "rangeunlock f 0 0".to_owned(),
                "rangeunlock f 7 1".to_owned(),
                "break f range 0 20".to_owned(),
                format!("l k {wait} {lease}"),
                format!("blpop q {wait}"),
                "rpush q v".to_owned(),
            ],
        };
        rng.choice(requests).unwrap().clone()
    }

    fn http_request(&mut self) -> String {
        let rng = &mut self.rng;
        let wait_ms = rng.choice([0, 1, 3, 9]).unwrap();
        let ttl_ms = rng.choice([1, 3, 9]).unwrap();
        let owner = rng.choice(["ann", "bob"]).unwrap();
        let id = rng.choice(["r1", "r2", ""]).unwrap();
        let (route, more) = match self.kind {
            1 => ("semaphores/s/acquire", ",\"limit\":2"),
            2 if rng.bool() => ("rwlocks/rw/acquire", ",\"mode\":\"read\""),
            2 => ("rwlocks/rw/acquire", ",\"mode\":\"write\""),
            _ if rng.bool() => ("elections/k/elect", ""),
            _ => ("locks/k/acquire", ""),
        };
        let name = ["k", "s", "rw", "k"][self.kind as usize];
        let lease = rng.choice(self.leases.iter());
        let lease = lease.map_or("\"lease_id\":\"x\"", |it| it);
        let owner = format!("\"owner_id\":\"{owner}\"");
        let times = format!("\"ttl_ms\":{ttl_ms},\"wait_ms\":{wait_ms}");
        match rng.u8(..6) {
            0 => format!("GET /v1/locks/{name}"),
            1 => format!("POST /v1/locks/{name}/release {{{owner},{lease}}}"),
            2 => {
                format!("POST /v1/locks/{name}/renew {{{owner},{lease},\"extend_by_ms\":{ttl_ms}}}")
            }
            _ => format!("POST /v1/{route} [X-Request-ID: {id}] {{{owner},{times}{more}}}"),
        }
    }
}
