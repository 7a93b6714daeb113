//! The lock table of a standby: records are replayed as they come, and nothing else happens to it.
//!
//! It expires nothing and answers nobody. When its member leads it becomes the table that is served.
//! Whatever is loaded later, fences stay above all that this process has ever seen: an etcd that was
//! restored from an old backup must not make them go back.

use crate::base::{Millis, Nanos};
use crate::engine::Engine;
use crate::engine::types::{Effects, Input};
use crate::store::Clocks;
use crate::store::etcd::{Unreadable, frames};

/// Makes an empty table, whose fences begin above this one.
pub type MakeEngine = Box<dyn Fn(u64) -> Engine>;

/// The lock table of a standby.
pub struct Replica {
    engine: Engine,
    make: MakeEngine,
    /// The highest fence that may have been given out, as far as this process has seen.
    fence_floor: u64,
    /// The highest one that was reserved in a log that was replayed here.
    reserved: u64,
    /// The last record that was replayed.
    number: u64,
    /// The highest number of a record that this process has seen in a log.
    seen: u64,
    /// How often everything was loaded.
    loads: u64,
    /// When it was last known that something is lost.
    lost_at: Option<Nanos>,
    /// A simulator has it leave out this record; 0 is none.
    left_out: u64,
}

impl Replica {
    /// An empty one.
    #[must_use]
    pub fn new(make: MakeEngine) -> Self {
        Self {
            engine: make(0),
            make,
            fence_floor: 0,
            reserved: 0,
            number: 0,
            seen: 0,
            loads: 0,
            lost_at: None,
            left_out: 0,
        }
    }

    /// Everything is loaded anew.
    pub fn reset(&mut self) {
        self.reserved = self.reserved.max(self.engine.fences_reserved());
        self.note_seen(self.number);
        self.note_fences(self.engine.fence_ceiling());
        self.engine = (self.make)(self.fence_floor);
        self.number = 0;
        self.loads += 1;
    }

    /// Fences up to this one may have been given out.
    pub fn note_fences(&mut self, upto: u64) {
        self.fence_floor = self.fence_floor.max(upto);
    }

    /// Records up to this one were in a log.
    pub fn note_seen(&mut self, number: u64) {
        self.seen = self.seen.max(number);
    }

    /// Whether an earlier log knew of more than the one that was loaded now: etcd has gone back.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.seen > self.number || self.reserved > self.engine.fences_reserved()
    }

    /// Everything was loaded. If that is less than there was before it is noted now, because the log soon has as many
    /// records again, and others.
    pub fn note_loaded(&mut self, now: Nanos) {
        if self.has_lost() {
            self.note_lost(now);
        }
    }

    /// Something that was acknowledged is lost, and those who rely on it have not had the time to notice.
    pub fn note_lost(&mut self, now: Nanos) {
        self.lost_at = Some(now);
    }

    /// Whether that is so still: they have this long.
    #[must_use]
    pub fn is_in_doubt(&self, now: Nanos, grace: Millis) -> bool {
        self.lost_at.is_some_and(|at| now < at.after(grace))
    }

    /// How often everything was loaded.
    #[must_use]
    pub fn loads(&self) -> u64 {
        self.loads
    }

    /// The last record that was replayed.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Replays records.
    ///
    /// # Errors
    /// They cannot be read; nothing that was loaded may be used.
    pub fn replay(&mut self, bytes: &[u8], clocks: Clocks) -> Result<(), Unreadable> {
        let mut nothing = Effects::new();
        for frame in frames(bytes) {
            let (number, entry) = frame?;
            self.number = self.number.max(number);
            if let Some(record) = entry.record(clocks).filter(|_| number != self.left_out) {
                self.engine
                    .apply(clocks.now, Input::Restore(&record), &mut nothing);
            }
        }
        Ok(())
    }

    /// The table, to look at.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The table, to do what a standby must not do: only a simulator does.
    pub fn engine_to_break(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Leaves out a record, as it must not: only a simulator has it do so.
    pub fn leave_out(&mut self, number: u64) {
        self.left_out = number;
    }

    /// The table, to be served; an empty one takes its place. What was lost by now is lost, and is not noticed
    /// again; for how long it is remembered does not change.
    pub fn take(&mut self) -> Engine {
        self.reserved = self.engine.fences_reserved();
        (self.seen, self.number) = (self.number, 0);
        self.note_fences(self.engine.fence_ceiling());
        let empty = (self.make)(self.fence_floor);
        std::mem::replace(&mut self.engine, empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ConnId, Token};
    use crate::engine::types::{Effect, Mode, Reply, Request};
    use crate::engine::{Origin, Rules};
    use crate::store::etcd::SALT;
    use crate::store::format::push_record;

    const KEY: &[u8] = b"job";
    const LEASE: Option<Millis> = Some(Millis(10_000));

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    fn clocks(ms: u64) -> Clocks {
        Clocks {
            now: at(ms),
            wall_ms: ms,
        }
    }

    fn conn(serial: u32) -> ConnId {
        ConnId {
            slot: serial,
            serial,
        }
    }

    fn replica() -> Replica {
        Replica::new(Box::new(|fence| {
            let rules = Rules {
                durable: true,
                ..Rules::default()
            };
            let origin = Origin {
                fence,
                seed: [1, 2],
                salt_key: [3, 4, 5, 6],
            };
            Engine::new(rules, origin)
        }))
    }

    /// A leader that has just begun, and its log.
    struct Leader {
        engine: Engine,
        log: Vec<u8>,
        number: u64,
    }

    impl Leader {
        fn new(replica: &mut Replica, ms: u64) -> Self {
            let mut engine = replica.take();
            let serve = Input::Serve {
                may_have_lost: false,
            };
            engine.apply(at(ms), serve, &mut Effects::new());
            Self {
                engine,
                log: Vec::new(),
                number: 0,
            }
        }

        fn apply(&mut self, ms: u64, input: Input<'_>) -> Effects {
            let mut out = Effects::new();
            self.engine.apply(at(ms), input, &mut out);
            let records: Vec<_> = self.engine.take_records().collect();
            for record in records {
                self.number += 1;
                push_record(&mut self.log, SALT, self.number, &record, || clocks(ms));
            }
            let kept = Input::Durable(self.engine.record_count());
            self.engine.apply(at(ms), kept, &mut out);
            out
        }

        fn ask(&mut self, ms: u64, serial: u32, request: Request<'_>) -> Effects {
            self.apply(ms, Input::Request(conn(serial), request))
        }

        fn acquire(&mut self, ms: u64, serial: u32) -> Option<Token> {
            let request = Request::Acquire {
                key: KEY,
                mode: Mode::Slot { limit: 1 },
                wait: Millis::ZERO,
                lease: LEASE,
            };
            granted(&self.ask(ms, serial, request))
        }

        fn held(&mut self, ms: u64) -> usize {
            self.apply(ms, Input::Time(u64::MAX));
            self.engine.counts().holders
        }
    }

    fn granted(out: &Effects) -> Option<Token> {
        out.iter().find_map(|it| match it {
            Effect::Reply(_, Reply::Granted { token, .. }) => Some(*token),
            _ => None,
        })
    }

    #[test]
    fn a_standby_ends_nothing_and_who_takes_over_gives_the_whole_recorded_lease() {
        let (mut first, mut standby) = (replica(), replica());
        let mut leader = Leader::new(&mut first, 0);
        let token = leader.acquire(0, 1).unwrap();
        // The recorded lease is the longest that was asked for.
        let longer = Request::Renew {
            key: KEY,
            token: Some(token),
            lease: Some(Millis(30_000)),
        };
        leader.ask(1_000, 1, longer);
        standby.replay(&leader.log, clocks(1_000)).unwrap();
        // Days later it is still there; from the take-over on it runs.
        let days_ms = 3 * 86_400_000;
        assert_eq!(standby.engine().counts().holders, 1);
        let mut next = Leader::new(&mut standby, days_ms);
        assert_eq!(next.held(days_ms + 29_999), 1);
        assert_eq!(next.held(days_ms + 30_000), 0);
        // What a leader ends is ended everywhere.
        let mut third = replica();
        third.replay(&leader.log, clocks(0)).unwrap();
        third.replay(&next.log, clocks(days_ms)).unwrap();
        assert_eq!(third.engine().counts().holders, 0);
    }

    #[test]
    fn a_connection_with_the_number_of_another_ones_at_the_old_leader_owns_nothing() {
        let (mut first, mut standby) = (replica(), replica());
        let mut leader = Leader::new(&mut first, 0);
        let token = leader.acquire(0, 1).unwrap();
        standby.replay(&leader.log, clocks(0)).unwrap();
        let mut next = Leader::new(&mut standby, 100);
        // The same slot and number, and another client: it comes, and goes.
        assert_eq!(next.acquire(200, 1), None);
        next.apply(300, Input::Disconnected(conn(1)));
        assert_eq!(next.held(400), 1);
        // The holder has it back by its token.
        let renew = Request::Renew {
            key: KEY,
            token: Some(token),
            lease: LEASE,
        };
        next.ask(500, 7, renew);
        assert_eq!(next.held(10_499), 1);
    }

    #[test]
    fn a_grant_that_was_never_fetched_is_held_to_its_lease_by_the_next_leader_and_then_free() {
        let (mut first, mut standby) = (replica(), replica());
        let mut leader = Leader::new(&mut first, 0);
        let token = leader.acquire(0, 1).unwrap();
        let enqueue = Request::Enqueue {
            key: KEY,
            mode: Mode::Slot { limit: 1 },
            lease: LEASE,
        };
        leader.ask(100, 2, enqueue);
        let release = Request::Release {
            key: KEY,
            token: Some(token),
        };
        leader.ask(200, 1, release);
        assert_eq!(leader.held(200), 1, "it is the other one's now");
        standby.replay(&leader.log, clocks(200)).unwrap();
        let mut next = Leader::new(&mut standby, 300);
        assert_eq!(next.acquire(10_299, 3), None);
        let later = next.acquire(10_300, 3).unwrap();
        assert!(later.fence > token.fence);
    }

    #[test]
    fn what_etcd_has_forgotten_is_noticed_once_and_fences_never_go_back() {
        let (mut first, mut standby) = (replica(), replica());
        let mut leader = Leader::new(&mut first, 0);
        let early = leader.log.clone();
        let token = leader.acquire(0, 1).unwrap();
        standby.replay(&leader.log, clocks(0)).unwrap();
        assert!(!standby.has_lost());
        standby.reset();
        standby.replay(&early, clocks(0)).unwrap();
        assert!(standby.has_lost());
        let mut next = Leader::new(&mut standby, 100);
        let after = next.acquire(100, 1).unwrap();
        assert!(after.fence > token.fence, "{after:?} after {token:?}");
        standby.reset();
        standby.replay(&next.log, clocks(0)).unwrap();
        assert!(!standby.has_lost(), "it was told of already");
    }
}
