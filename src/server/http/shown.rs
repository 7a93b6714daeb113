//! The numbers that the server knows of itself, gathered once for whoever shows them.

use super::super::conn::Transport;
use super::super::pace::Recent;
use super::super::stats::Figures;
use super::super::{Door, Server};
use crate::base::Nanos;
use crate::store::Store;

/// What is shown of the server besides the table. Gathered before the answer is written, because the
/// memory that is in use cannot be counted while a part of it is being written to.
pub(in crate::server) struct Shown {
    pub(super) now: Nanos,
    pub(super) is_draining: bool,
    pub(super) line_port: Option<u16>,
    pub(super) figures: Figures,
    pub(super) recent: Recent,
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
        }
    }

    fn figures(&self) -> Figures {
        Figures {
            connections: self.conns.len(),
            slow_consumers: self.slow_consumers,
            longest_turn: self.longest_turn,
            wrong_secrets: self.guesses.total(),
            memory_bytes: self.memory_bytes(),
            memory_max_bytes: self.settings.memory_max,
            epoch: self.settings.epoch,
            records: self.engine.record_count(),
            records_durable: self.held_back.durable(),
            outbox_bytes: self.pool.outbox_bytes(),
            lost_log_lines: (self.settings.lost_log_lines)(),
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
