//! Every transcript against the server with pipes for a network and a number for the time.
//!
//! `UPDATE_SCRIPTS=1 cargo test --test script` writes what was said into the transcripts; review it
//! as a diff.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::VecDeque;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::config::Config;
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Holdings, Server};

use common::{Ending, Heard, World};

#[test]
fn every_transcript_is_held_to_over_pipes() {
    let rewrite = std::env::var_os("UPDATE_SCRIPTS").is_some();
    common::hold_all(Pipes::new, rewrite);
}

/// Most turns the server may ask for at one instant; one more and it would never sleep.
const TURNS_AT_ONCE_MAX: u32 = 1_000;

struct Pipes {
    server: Server<Pipe>,
    now: Nanos,
    clients: Vec<Client>,
    /// Went since the last turn.
    gone: Vec<ConnId>,
    /// Sent something since the last turn, or went.
    heard_of: Vec<ConnId>,
}

struct Client {
    peer: Peer,
    /// `None` if the server did not want it.
    id: Option<ConnId>,
    lines: VecDeque<u8>,
    is_over: bool,
}

impl Pipes {
    fn new(config: &Config) -> Self {
        Self {
            server: common::server(config),
            now: Nanos(1),
            clients: Vec::new(),
            gone: Vec::new(),
            heard_of: Vec::new(),
        }
    }
}

impl World for Pipes {
    fn connect(&mut self) -> usize {
        let number = self.clients.len();
        let (here, peer) = pipe(number as u32);
        self.clients.push(Client {
            peer,
            id: self.server.accept(self.now, here),
            lines: VecDeque::new(),
            is_over: false,
        });
        number
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        let Client { peer, id, .. } = &self.clients[client];
        peer.send(bytes);
        peer.arrive(usize::MAX);
        self.heard_of.extend(*id);
    }

    fn end(&mut self, client: usize, how: Ending) {
        let Client { peer, id, .. } = &self.clients[client];
        match how {
            Ending::Close | Ending::HalfClose => peer.close(),
            Ending::Reset => peer.reset(),
        }
        self.gone.extend(*id);
        self.heard_of.extend(*id);
    }

    fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
    }

    fn turn(&mut self) {
        for id in self.gone.drain(..) {
            self.server.hang_up(self.now, id);
        }
        for id in self.heard_of.drain(..) {
            self.server.readable(&|| self.now, id);
        }
        for _ in 0..TURNS_AT_ONCE_MAX {
            self.server.finish_turn(&|| self.now);
            self.server.engine().check();
            if self
                .server
                .next_deadline()
                .is_none_or(|next| next > self.now)
            {
                return;
            }
        }
        panic!("the server never comes to rest");
    }

    fn hear(&mut self, client: usize, _due: bool) -> Option<Heard> {
        let Client {
            peer,
            lines,
            is_over,
            ..
        } = &mut self.clients[client];
        lines.extend(peer.receive());
        if let Some(end) = lines.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = lines.drain(..=end).collect();
            return Some(Heard::Line(
                String::from_utf8_lossy(&line[..end]).into_owned(),
            ));
        }
        assert!(lines.is_empty(), "half a line: {lines:?}");
        let ends = peer.is_ended() && !*is_over;
        *is_over |= ends;
        ends.then_some(Heard::End)
    }

    fn shut_down(&mut self) {
        if self.server.is_draining() {
            self.server.close_all(self.now);
        } else {
            self.server.shutdown(self.now);
        }
    }

    fn has_stopped(&mut self) -> bool {
        self.server.is_drained()
    }

    /// When everyone has left and every lease and every idle key has had its time, nothing is left
    /// but what is to be kept for ever: counters that count, values without a time to live, lists.
    fn finish(mut self) {
        for client in 0..self.clients.len() {
            self.end(client, Ending::Close);
        }
        self.turn();
        for span in [Millis::MAX, Millis::from_secs(1_000)] {
            self.pass(span);
            self.turn();
        }
        if !self.server.is_draining() {
            let view = self.server.engine().view(self.now);
            let counters = view.counters().filter(|it| it.what != 0).count();
            let values = view.values().filter(|it| it.what.ttl_ns.is_none()).count();
            let lists = view.lists().filter(|it| it.what.0 > 0).count();
            let mut kept = Holdings::default();
            kept.engine.others = counters + values + lists;
            assert_eq!(self.server.holdings(), kept, "something is left behind");
        }
    }
}
