//! Every transcript against the server with pipes for a network and a number for the time.
//!
//! `UPDATE_SCRIPTS=1 cargo test --test server script::` writes what was said into the transcripts;
//! review it as a diff.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::config::Config;
use latchd::engine::types::Share;
use latchd::server::Holdings;

use crate::common::{self, Ending, Heard, World};

#[test]
fn every_transcript_is_held_to_over_pipes() {
    let rewrite = std::env::var_os("UPDATE_SCRIPTS").is_some();
    common::hold_all(OverPipes::new, rewrite);
}

/// `Engine::check` counts what is held in each share after every turn.
#[test]
fn every_transcript_is_held_to_with_shares() {
    let shares = [
        ("j", "j"),
        ("job", "job"),
        ("k", "k"),
        ("k", "/"),
        ("f", "f"),
    ];
    let share = |(name, prefix): (&str, &str)| Share {
        name: name.into(),
        prefix: prefix.as_bytes().into(),
    };
    let shares = shares.map(share).to_vec();
    let world = |config: &Config| {
        let shares = shares.clone();
        OverPipes::new(&Config {
            shares,
            ..config.clone()
        })
    };
    common::hold_all(world, false);
}

/// Most turns the server may ask for at one instant; one more and it would never sleep.
const TURNS_AT_ONCE_MAX: u32 = 1_000;

struct OverPipes {
    pipes: Pipes,
    /// Clients that have read their end.
    over: BTreeSet<usize>,
}

impl OverPipes {
    fn new(config: &Config) -> Self {
        Self {
            pipes: Pipes::new(common::server(config)),
            over: BTreeSet::new(),
        }
    }
}

impl World for OverPipes {
    fn connect(&mut self) -> usize {
        self.pipes.connect()
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        self.pipes.send(client, bytes);
    }

    fn end(&mut self, client: usize, how: Ending) {
        match how {
            Ending::Close | Ending::HalfClose => self.pipes.half_close(client),
            Ending::Reset => self.pipes.reset(client),
        }
    }

    fn pass(&mut self, span: Millis) {
        self.pipes.pass(span);
    }

    fn turn(&mut self) {
        let turns = self.pipes.settle();
        assert!(
            turns <= TURNS_AT_ONCE_MAX,
            "{turns} turns before the server comes to rest"
        );
    }

    fn hear(&mut self, client: usize, _due: bool) -> Option<Heard> {
        if let Some(line) = self.pipes.read_line(client) {
            return Some(Heard::Line(line));
        }
        assert_eq!(self.pipes.read(client), "", "half a line");
        let is_ended = self.pipes.peer(client).is_ended();
        (is_ended && self.over.insert(client)).then_some(Heard::End)
    }

    fn shut_down(&mut self) {
        self.pipes.stop();
    }

    fn has_stopped(&mut self) -> bool {
        self.pipes.server.is_drained()
    }

    /// When everyone has left and every lease and every idle key has had its time, nothing is left
    /// but what is to be kept for ever: counters that count, values without a time to live, lists.
    fn finish(mut self) {
        for client in self.pipes.everyone() {
            self.end(client, Ending::Close);
        }
        self.turn();
        for span in [Millis::MAX, Millis::from_secs(1_000)] {
            self.pass(span);
            self.turn();
        }
        let Self { pipes, .. } = self;
        if !pipes.server.is_draining() {
            let view = pipes.server.engine().view(pipes.now());
            let counters = view.counters().filter(|it| it.what != 0).count();
            let values = view.values().filter(|it| it.what.ttl_ns.is_none()).count();
            let lists = view.lists().filter(|it| it.what.0 > 0).count();
            let mut kept = Holdings::default();
            kept.engine.others = counters + values + lists;
            assert_eq!(pipes.server.holdings(), kept, "something is left behind");
        }
    }
}
