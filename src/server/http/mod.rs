//! HTTP on the same connections and the same lock table: what it needs of the server besides.
//!
//! `serve` takes requests off a connection's input, as `server/serve.rs` does with lines; `answer` says
//! what came of them, `streams` what happens meanwhile, `access` who may ask. What is shown: `pages`
//! locks and connections, `stats` and `metrics` figures (which `shown` gathers and `figures` counts), `files`
//! the dashboard. Turns, boxes, the gate
//! and the disk are the line protocol's, and know nothing of HTTP but how long it may take.

mod access;
mod access_log;
mod answer;
mod day;
mod figures;
mod files;
mod metrics;
mod metrics_cluster;
pub(super) mod pages;
#[cfg(test)]
mod sample;
mod serve;
mod show;
mod shown;
mod stats;
mod streams;

use std::collections::VecDeque;

use self::access_log::Finished;
use self::day::Day;
use self::figures::HttpFigures;
use super::Door;
use crate::base::{Millis, Nanos};
use crate::wire::codec::Codec;
use crate::wire::http::{HttpCodec, Part};

/// How long the head of a request may take from its first byte, and its body from the end of the head.
pub(super) const PART_MAX: Millis = Millis(5_000);

/// What a connection that speaks HTTP takes more than others, before it has asked for anything.
pub(super) const CODEC_BYTES: usize = crate::memory::block_bytes(size_of::<HttpCodec>());

/// What the server keeps for HTTP.
#[derive(Default)]
pub(super) struct Http {
    pub(super) figures: HttpFigures,
    /// What their memos take.
    memo_bytes: usize,
    /// Answers that were not sent yet when they were last looked at: how long they took is known when
    /// they are.
    finished: VecDeque<Finished>,
    /// What is to be logged of them takes so much.
    line_bytes: usize,
    /// Where long answers are written before their length is known.
    page: Vec<u8>,
    /// Key of the present request, for repeats of it; empty if it has no id.
    pub(super) request_key: Vec<u8>,
    /// From which the ids of requests are made that bring none.
    ids: u64,
    day: Day,
}

impl Http {
    /// How many bytes are kept for connections, beyond what every connection takes.
    pub(super) fn memory(&self) -> usize {
        let finished = self.finished.capacity() * size_of::<Finished>() + self.line_bytes;
        self.codecs_bytes() + self.page.capacity() + finished
    }

    /// What all connections that speak HTTP take more than others.
    pub(super) fn codecs_bytes(&self) -> usize {
        self.figures.open(Door::Http) as usize * CODEC_BYTES + self.memo_bytes
    }

    /// An answer is made.
    fn note_finished(&mut self, finished: Finished) {
        self.line_bytes += finished.line_bytes();
        self.finished.push_back(finished);
    }

    /// The oldest answer that is not looked at yet, if it may leave.
    fn next_finished(&mut self, may_leave: impl FnOnce(&mut Finished) -> bool) -> Option<Finished> {
        let finished = self.finished.pop_front_if(may_leave)?;
        self.line_bytes -= finished.line_bytes();
        Some(finished)
    }

    /// Whether there are answers of which it is to be noted how long they took.
    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// A connection has come, by this door.
    pub(super) fn note_accepted(&mut self, door: Door) {
        self.figures.note_accepted(door);
    }

    /// A connection has gone.
    pub(super) fn note_closed(&mut self, codec: &Codec) {
        match codec {
            Codec::Line(_) => self.figures.note_closed(Door::Line),
            Codec::Http(codec) => {
                self.figures.note_closed(Door::Http);
                self.memo_bytes -= codec.memo.heap_bytes();
            }
        }
    }

    /// Sets the key under which the engine finds a repeated request: its id, a blank and the asker.
    /// An id has no blank, so two different pairs never give the same key.
    pub(super) fn set_request_key(&mut self, id: Option<&str>, asker: &[u8]) {
        self.request_key.clear();
        if let Some(id) = id {
            self.request_key.extend_from_slice(id.as_bytes());
            self.request_key.push(b' ');
            self.request_key.extend_from_slice(asker);
        }
    }

    /// The id of a request that has none: not a secret, only unlike all others.
    fn make_id(&mut self, epoch: u64) -> [u64; 2] {
        self.ids += 1;
        let high = mix(epoch ^ self.ids.rotate_left(32));
        let low = mix(high ^ self.ids);
        // Marked as what it is: random, by the usual layout.
        [high & !0xf000 | 0x4000, low >> 2 | 1 << 63]
    }
}

/// Spreads a number over all 64 bits (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// When a connection that speaks HTTP has been silent for too long, if its last byte or answer was then.
pub(super) fn read_deadline(codec: &HttpCodec, since: Nanos, idle_max: Millis) -> Nanos {
    match codec.part {
        Part::Nothing => since.after(idle_max),
        Part::Head | Part::Body => since.after(PART_MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;
    use crate::wire::http::context::Context;

    #[test]
    fn what_is_to_be_logged_counts_until_it_may_be() {
        let mut http = Http::default();
        let finished = |record| Finished {
            op: None,
            asked_at: Nanos(1),
            record,
            status: 200,
            line: Some((access_log::of_request(&Context::UNREAD), "p".repeat(1_000))),
        };
        http.note_finished(finished(1));
        http.note_finished(finished(2));
        let both = http.memory();
        assert!(both >= 2_000, "{both}");
        assert!(http.next_finished(|it| it.record <= 1).is_some());
        assert!(http.next_finished(|it| it.record <= 1).is_none());
        assert!(http.memory() + 1_000 <= both);
        assert!(http.next_finished(|_| true).is_some());
        assert_eq!(http.line_bytes, 0);
    }

    #[test]
    fn ids_of_requests_are_uuids_and_none_comes_twice() {
        let mut http = Http::default();
        let ids: BTreeSet<Uuid> = (0..1_000)
            .map(|_| http.make_id(7))
            .map(|[high, low]| Uuid::from_u64_pair(high, low))
            .collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| id.get_version_num() == 4));
    }
}
