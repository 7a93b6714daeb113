//! Random requests at both doors, from clients that have several connections: what a fuzzer would send.
//!
//! No answer is predicted here; `tests/model` does that. The server must go on, `Engine::check` looks
//! at the table after every turn, and when all have left nothing may be left.

use fastrand::Rng;
use latchd::engine::Rules;
use latchd::server::Settings;

use crate::world::World;

const SEEDS: u64 = 200;
const STEPS: usize = 200;

/// The first three attach to one client, which others do as well now and then.
const LINES: usize = 6;
const HTTPS: usize = 4;

struct Fuzz {
    rng: Rng,
    world: World,
    /// Each with its number and whether it speaks HTTP.
    conns: Vec<(usize, bool)>,
    /// Which of all requests are made: few of them, so that they meet.
    asks: Vec<usize>,
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
        let mut rng = Rng::with_seed(seed);
        let mut fuzz = Fuzz {
            asks: { 0..6 }.map(|_| rng.usize(..)).collect(),
            rng,
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
                    true => crate::world::spelled(&self.http_request()).into_bytes(),
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
        let wait = rng.choice(["0", "1ms", "3ms", "9ms", "40ms"]).unwrap();
        let lease = rng.choice(["1ms", "3ms", "9ms", "40ms"]).unwrap();
        let token = rng.choice(self.tokens.iter()).map_or("x", |it| it);
        let token_key = rng.choice(["k", "s", "rw"]).unwrap();
        let requests = [
            format!("e k {lease}"),
            format!("w k {wait}"),
            format!("w k {wait}"),
            format!("l k {wait} {lease}"),
            format!("elect k {wait} {lease}"),
            format!("se s 2 {lease}"),
            format!("sw s {wait}"),
            format!("sl s {wait} 2 {lease}"),
            format!("re rw {lease}"),
            format!("we rw {lease}"),
            format!("rw rw {wait}"),
            format!("ww rw {wait}"),
            format!("rl rw {wait} {lease}"),
            format!("wl rw {wait} {lease}"),
            format!("r {token_key} {token}"),
            format!("n {token_key} {token} {lease}"),
            format!("resign k {token}"),
            format!("pos {token_key}"),
            format!("who {token_key}"),
            "observe k".to_owned(),
            format!("rangelock f ex 0 10 {wait}"),
            format!("rangelock f sh 5 10 {wait}"),
            "rangeunlock f 0 0".to_owned(),
            "break f range 0 20".to_owned(),
            "break k".to_owned(),
            format!("bwait b 2 {wait}"),
            format!("blpop q {wait}"),
            "rpush q v".to_owned(),
            "hello _ keep=1".to_owned(),
            "hello _ deadlock=1".to_owned(),
            "attach gw/1 1 s".to_owned(),
            "attach gw/2 0 s".to_owned(),
            "detach gw/1 s".to_owned(),
        ];
        let ask = rng.choice(&self.asks).unwrap();
        requests[ask % requests.len()].clone()
    }

    fn http_request(&mut self) -> String {
        let rng = &mut self.rng;
        let wait_ms = rng.choice([0, 1, 3, 9, 40]).unwrap();
        let ttl_ms = rng.choice([1, 3, 9, 40]).unwrap();
        let owner = rng.choice(["ann", "bob"]).unwrap();
        let id = rng.choice(["r1", "r2", ""]).unwrap();
        let mode = rng.choice(["read", "write"]).unwrap();
        let ask = format!("\"owner_id\":\"{owner}\",\"ttl_ms\":{ttl_ms},\"wait_ms\":{wait_ms}");
        let id = format!("[X-Request-ID: {id}]");
        let lease = rng.choice(self.leases.iter());
        let lease = lease.map_or("\"lease_id\":\"x\"", |it| it);
        let hold = format!("\"owner_id\":\"{owner}\",{lease}");
        let requests = [
            format!("POST /v1/locks/k/acquire {id} {{{ask}}}"),
            format!("POST /v1/elections/k/elect {id} {{{ask}}}"),
            format!("POST /v1/semaphores/s/acquire {id} {{{ask},\"limit\":2}}"),
            format!("POST /v1/rwlocks/rw/acquire {id} {{{ask},\"mode\":\"{mode}\"}}"),
            format!("POST /v1/rwlocks/rw/acquire {id} {{{ask},\"mode\":\"{mode}\"}}"),
            format!("POST /v1/locks/k/renew {{{hold},\"extend_by_ms\":{ttl_ms}}}"),
            format!("POST /v1/locks/k/release {{{hold}}}"),
            format!("POST /v1/locks/rw/release {{{hold}}}"),
            "GET /v1/locks/k".to_owned(),
        ];
        let ask = rng.choice(&self.asks).unwrap();
        requests[ask % requests.len()].clone()
    }
}
