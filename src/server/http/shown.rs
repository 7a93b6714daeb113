//! The numbers that the server knows of itself, gathered once for whoever shows them.

use super::super::conn::Transport;
use super::super::pace::Recent;
use super::super::stats::Figures;
use super::super::{Door, Server};
use crate::base::Nanos;
use crate::store::{ClusterShown, Store};

/// What is shown of the server besides the table. Gathered before the answer is written, because the
/// memory that is in use cannot be counted while a part of it is being written to.
pub(in crate::server) struct Shown {
    pub(super) now: Nanos,
    pub(super) is_draining: bool,
    pub(super) line_port: Option<u16>,
    pub(super) figures: Figures,
    pub(super) recent: Recent,
    pub(super) cluster: Option<ClusterShown>,
}

impl<T: Transport, S: Store> Server<T, S> {
    /// What is shown besides the table. Looks at no connection and no key.
    pub(in crate::server) fn shown(&mut self, now: Nanos) -> Shown {
        Shown {
            now,
            is_draining: self.draining,
            line_port: self.settings.http.line_port,
            figures: self.figures(),
            recent: self.pace.recent(now),
            cluster: self.store.cluster(),
        }
    }

    /// The same that `stats` tells over the line protocol.
    pub(in crate::server) fn figures(&self) -> Figures {
        Figures {
            connections: self.conns.len(),
            slow_consumers: self.slow_consumers,
            longest_turn: self.longest_turn,
            wrong_secrets: self.guesses.total(),
            forbidden: self.forbidden.total(),
            memory_bytes: self.memory_bytes(),
            memory_max_bytes: self.settings.memory_max,
            epoch: self.settings.epoch,
            records: self.engine.record_count(),
            records_durable: self.held_back.durable(),
            outbox_bytes: self.pool.outbox_bytes(),
            lost_log_lines: (self.settings.lost_log_lines)(),
            handshakes: self.handshakes.figures(),
        }
    }
}

impl Door {
    /// The word that people see.
    pub(in crate::server) const fn word(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Http => "http",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::super::super::{Event, Readiness, Settings};
    use super::super::sample::Sample;
    use super::*;
    use crate::engine::Rules;

    /// A peer that says this at once, and hears everything.
    struct Peer(Vec<u8>);

    impl Transport for Peer {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let said = std::mem::take(&mut self.0);
            if said.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            into[..said.len()].copy_from_slice(&said);
            Ok(said.len())
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn shutdown_write(&mut self) {}

        fn peer(&self) -> String {
            "a test".to_owned()
        }
    }

    #[test]
    fn turns_and_their_requests_are_counted_when_the_loop_sleeps() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let engine = Sample::new(Rules::default()).engine;
        let mut server = Server::new(Settings::default(), engine);
        let said = b"ping\n_\n\nping\n_\n\nl\njob\n0\n";
        let conn = server.accept(ms(1), Peer(said.to_vec())).unwrap();
        let readiness = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let events = [Event { conn, readiness }].into_iter();
        server.turn(&|| ms(2), events, 0);
        server.note_sleep(ms(5));
        server.note_sleep(ms(9)); // it slept already
        let shown = server.shown(ms(1_006));
        let Recent { turns, operations } = shown.recent;
        assert_eq!((turns.count, turns.max_us), (1, 3_000));
        assert_eq!((operations.count, operations.max_us), (3, 3_000));
        assert_eq!(shown.figures.connections, 1);
        assert_eq!(server.engine.counts().holders, 1);
    }
}
