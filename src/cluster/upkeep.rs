//! What a leader does besides: snapshots of the log, and a look at how large etcd has become.
//!
//! On the thread that followed before, which has nothing else to do while this member leads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::{info, warn};

use super::member::Member;
use super::role::Role;
use crate::base::Nanos;
use crate::etcd::{Answer, Ask, Etcd, Trouble};
use crate::store::etcd::{Keys, NotRead, prepare};

/// How often etcd's size is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The longest time between two snapshots, if anything was written.
const SNAPSHOT_EVERY_NS: u64 = 60_000_000_000;

/// The shortest, whatever is written, and after one that failed.
const SNAPSHOT_REST_NS: u64 = 5_000_000_000;

const WITHIN: Duration = Duration::from_secs(5);

/// How fast pieces are written, so that entries do not wait behind them.
const PIECES_BYTES_PER_S: u64 = 4 << 20;

/// In percent of the quota: from here on there are more snapshots, and from there on nothing may grow.
const TRIM_PERCENT: u64 = 50;
const TIGHT_PERCENT: u64 = 70;

/// A snapshot for which more than this would be needed is not begun.
const FULL_PERCENT: u64 = 95;

/// Looks after the log while this member leads, with this revision of the leader's key.
pub(super) fn attend(member: &Arc<Member>, etcd: &mut dyn Etcd, keys: &Keys, leader: u64) {
    let figures = &member.figures;
    let is_leading = || !member.is_over() && is_leading(member);
    let mut last = Snapshotted::begin(member);
    let [mut of_size, mut of_log, mut of_past] = [const { String::new() }; 3];
    let mut was_full = false;
    while is_leading() {
        tell_full(member, &mut was_full);
        match look(member, etcd, WITHIN) {
            Ok(bytes_in_use) => {
                of_size.clear();
                note_tight(member, bytes_in_use);
            }
            // What else there is is told by those who renew and append.
            Err(why) if why.is_refusal() && is_news(&mut of_size, &why.to_string()) => {
                warn!("how large etcd is cannot be seen: {why}");
            }
            Err(_) => {}
        }
        if is_leading() && last.is_due(member) {
            let tried = Snapshotted::now(member);
            // After one that failed the next is tried as soon as after a long log, and not after as much again.
            last.at = Nanos(
                tried
                    .at
                    .0
                    .saturating_sub(SNAPSHOT_EVERY_NS - SNAPSHOT_REST_NS),
            );
            match snapshot(member, etcd, keys, leader, &is_leading) {
                Ok(revision) => {
                    last = tried;
                    of_log.clear();
                    let compacted = revision.map_or(Ok(()), |it| compact(member, etcd, it));
                    match compacted {
                        Err(why) if is_news(&mut of_past, &why.to_string()) => {
                            warn!(
                                "etcd does not forget what was deleted: {why}; see --etcd-compact"
                            );
                        }
                        Err(_) => {}
                        Ok(()) => of_past.clear(),
                    }
                }
                Err(why) if is_leading() && is_news(&mut of_log, &why.to_string()) => {
                    warn!("the log cannot be made shorter: {why}");
                }
                Err(_) => {}
            }
        }
        member.nap(LOOK_EVERY);
    }
    figures.is_tight.store(false, Ordering::Relaxed);
    figures.is_full.store(false, Ordering::Relaxed);
}

/// Says once that etcd takes nothing more, and once that it does.
fn tell_full(member: &Member, was_full: &mut bool) {
    let is_full = member.figures.is_full.load(Ordering::Relaxed);
    match (std::mem::replace(was_full, is_full), is_full) {
        (false, true) => warn!(
            "etcd has no space for the log: changes that take room are refused with error_storage, and \
             nobody could take over; see docs/cluster.md"
        ),
        (true, false) => info!("etcd has space for the log again"),
        _ => {}
    }
}

/// Whether this was not complained of last time.
fn is_news(complaint: &mut String, why: &str) -> bool {
    let is_news = complaint != why;
    why.clone_into(complaint);
    is_news
}

/// Looks how large etcd is. Returns how much of it is in use.
pub(super) fn look(member: &Member, etcd: &mut dyn Etcd, within: Duration) -> Result<u64, Trouble> {
    let Answer::Status {
        bytes,
        bytes_in_use,
    } = etcd.call(&Ask::Status, within)?
    else {
        return Err(Trouble::Garbled("an answer to another question".to_owned()));
    };
    let figures = &member.figures;
    figures.etcd_bytes.store(bytes, Ordering::Relaxed);
    let in_use = &figures.etcd_bytes_in_use;
    in_use.store(bytes_in_use, Ordering::Relaxed);
    Ok(bytes_in_use)
}

fn is_leading(member: &Member) -> bool {
    matches!(member.tenancy.role(), Role::Leader | Role::Paused)
}

/// When there is little space left, whatever would grow is refused; what makes room goes on.
fn note_tight(member: &Member, bytes_in_use: u64) {
    let is_tight = bytes_in_use >= member.options.quota_bytes / 100 * TIGHT_PERCENT;
    let figures = &member.figures;
    if figures.is_tight.swap(is_tight, Ordering::Relaxed) != is_tight {
        match is_tight {
            true => warn!(
                "etcd uses {bytes_in_use} bytes, more than {TIGHT_PERCENT} % of --etcd-quota: changes \
                 that take room are refused with error_storage; delete something, or give etcd \
                 (--quota-backend-bytes) and every latchd (--etcd-quota) a larger one"
            ),
            false => info!("there is room in etcd again"),
        }
        member.tenancy.wake();
    }
}

/// When the last snapshot was tried.
struct Snapshotted {
    at: Nanos,
    seq: u64,
    log_bytes: u64,
}

impl Snapshotted {
    /// For a new leader. The first one comes soon: if leaders never stayed for as long as snapshots are
    /// apart the log would grow without end, and whoever starts anew would read all of it.
    fn begin(member: &Member) -> Self {
        let now = Self::now(member);
        Self {
            at: Nanos(
                now.at
                    .0
                    .saturating_sub(SNAPSHOT_EVERY_NS - SNAPSHOT_REST_NS),
            ),
            seq: 0,
            ..now
        }
    }

    fn now(member: &Member) -> Self {
        Self {
            at: member.tenancy.now(),
            seq: member.figures.seq.load(Ordering::Relaxed),
            log_bytes: member.figures.entry_bytes.load(Ordering::Relaxed),
        }
    }

    fn is_due(&self, member: &Member) -> bool {
        let now = Self::now(member);
        let since = now.at.since(self.at);
        let in_use = member.figures.etcd_bytes_in_use.load(Ordering::Relaxed);
        let is_large = in_use >= member.options.quota_bytes / 100 * TRIM_PERCENT;
        let has_grown = now.log_bytes - self.log_bytes >= member.options.trim_bytes;
        now.seq != self.seq
            && (since >= SNAPSHOT_EVERY_NS || since >= SNAPSHOT_REST_NS && (has_grown || is_large))
    }
}

/// An etcd that is asked nothing any more when this member leads no longer. To read a long log takes a while, and
/// meanwhile it would neither follow nor take over.
struct WhileLeading<'a> {
    etcd: &'a mut dyn Etcd,
    is_leading: &'a dyn Fn() -> bool,
}

impl Etcd for WhileLeading<'_> {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        match (self.is_leading)() {
            true => self.etcd.call(ask, within),
            false => Err(Trouble::Unreachable(
                "this member leads no longer".to_owned(),
            )),
        }
    }
}

/// Returns up to which revision etcd may forget what was, if there is a new one.
fn snapshot(
    member: &Member,
    etcd: &mut dyn Etcd,
    keys: &Keys,
    leader: u64,
    is_leading: &dyn Fn() -> bool,
) -> Result<Option<u64>, NotRead> {
    let options = &member.options;
    let etcd = &mut WhileLeading { etcd, is_leading };
    let snapshot = prepare(etcd, keys, options.batch_bytes, WITHIN)?;
    if snapshot.is_old() {
        return Ok(None);
    }
    // Until it is published and the oldest one is deleted there are three, and the log. A full etcd would
    // be worse than a long log: it grants no leases, so that nobody could take over.
    let in_use = member.figures.etcd_bytes_in_use.load(Ordering::Relaxed);
    let most = options.quota_bytes / 100 * FULL_PERCENT;
    if in_use.saturating_add(snapshot.bytes()) > most {
        return Err(NotRead::Trouble(Trouble::NoSpace(format!(
            "a snapshot of {} bytes does not fit beside the {in_use} in use, with --etcd-quota {}; give \
             etcd a larger quota (--quota-backend-bytes) and every latchd the same (--etcd-quota), at \
             least {}, four times as much as there is to keep",
            snapshot.bytes(),
            options.quota_bytes,
            snapshot
                .bytes()
                .saturating_mul(4)
                .max(in_use.saturating_mul(2))
        ))));
    }
    let rest = options.batch_bytes as u64 * 1_000_000_000 / PIECES_BYTES_PER_S;
    let rest = || member.nap(Duration::from_nanos(rest));
    let written = snapshot.write(etcd, keys, leader, WITHIN, rest)?;
    let revision = snapshot.publish(etcd, keys, leader, written, WITHIN)?;
    member.figures.snapshots.fetch_add(1, Ordering::Relaxed);
    info!(
        "a snapshot of {} bytes stands for the log up to entry {}",
        snapshot.bytes(),
        snapshot.seq()
    );
    Ok(Some(revision))
}

/// Has etcd forget what was. That somebody else has done it already is as good; that etcd does not let us
/// is not.
fn compact(member: &Member, etcd: &mut dyn Etcd, revision: u64) -> Result<(), Trouble> {
    if !member.options.compacts {
        return Ok(());
    }
    match etcd.call(&Ask::Compact { revision }, WITHIN) {
        Err(why) if why.is_refusal() => Err(why),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Options;
    use super::super::testing::{TestPlace, member, options};
    use super::*;
    use crate::engine::types::Record;
    use crate::etcd::{Compare, Model, Op};
    use crate::store::Clocks;
    use crate::store::etcd::{Appender, Keys, Logged, SALT, create, succeeded};
    use crate::store::format::push_record;

    /// A model of etcd, and what it was asked.
    #[derive(Default)]
    struct TestEtcd {
        model: Model,
        asked: Vec<Ask>,
    }

    impl Etcd for TestEtcd {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            self.asked.push(ask.clone());
            self.model.apply(Nanos(1), ask)
        }
    }

    impl TestEtcd {
        /// With the beginning of a log. Returns the revision of the leader's key, too.
        fn led(keys: &Keys) -> (Self, u64) {
            let mut etcd = Self::default();
            create(&mut etcd, keys, WITHIN).unwrap();
            let lead = Ask::Txn {
                compare: vec![Compare::Created(keys.leader(), 0)],
                success: vec![Op::Put {
                    key: keys.leader(),
                    value: b"us".to_vec(),
                    lease: 0,
                }],
                failure: Vec::new(),
            };
            let leader = succeeded(etcd.call(&lead, WITHIN).unwrap()).unwrap();
            (etcd, leader)
        }

        fn has_compacted(&self) -> bool {
            let mut asked = self.asked.iter();
            asked.any(|it| matches!(it, Ask::Compact { .. }))
        }
    }

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_snapshot_that_would_fill_etcd_is_not_begun_and_it_is_said_what_to_do() {
        let (member, _) = member(options());
        let keys = Keys::new("test", 0);
        let (mut etcd, leader) = TestEtcd::led(&keys);
        let in_use = &member.figures.etcd_bytes_in_use;
        in_use.store(950_000, Ordering::Relaxed);
        let before = etcd.model.revision();
        let refused = snapshot(&member, &mut etcd, &keys, leader, &|| true).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("does not fit"), "{refused}");
        assert!(refused.contains("larger quota"), "{refused}");
        assert!(refused.contains("1900000"), "{refused}");
        assert_eq!(etcd.model.revision(), before, "nothing was written");
        in_use.store(900_000, Ordering::Relaxed);
        snapshot(&member, &mut etcd, &keys, leader, &|| true).unwrap();
        assert!(etcd.model.value(&keys.snap()).is_some());
    }

    /// A leader that has just had a snapshot.
    fn snapshotted(member: &Member) -> Snapshotted {
        let last = Snapshotted::now(member);
        assert!(!last.is_due(member));
        last
    }

    fn write(member: &Member, bytes: u64) {
        member.figures.seq.fetch_add(1, Ordering::Relaxed);
        let written = &member.figures.entry_bytes;
        written.fetch_add(bytes, Ordering::Relaxed);
    }

    #[test]
    fn a_snapshot_is_due_after_a_minute_if_anything_was_written() {
        let (member, place) = member(options());
        let last = snapshotted(&member);
        place.pass(seconds(3_600));
        assert!(!last.is_due(&member), "nothing was written");
        let last = snapshotted(&member);
        write(&member, 1);
        place.pass(Duration::from_millis(59_999));
        assert!(!last.is_due(&member));
        place.pass(Duration::from_millis(1));
        assert!(last.is_due(&member));
    }

    #[test]
    fn a_snapshot_is_due_after_a_long_log_and_a_rest() {
        let (member, place) = member(options());
        let last = snapshotted(&member);
        write(&member, (32 << 20) - 1);
        place.pass(seconds(30));
        assert!(!last.is_due(&member), "it is not long");
        write(&member, 1);
        assert!(last.is_due(&member));
        let last = snapshotted(&member);
        write(&member, 32 << 20);
        place.pass(Duration::from_millis(4_999));
        assert!(!last.is_due(&member), "it has to rest");
        place.pass(Duration::from_millis(1));
        assert!(last.is_due(&member));
    }

    #[test]
    fn a_snapshot_is_due_after_a_rest_when_half_of_the_quota_is_used() {
        let (member, place) = member(options());
        let last = snapshotted(&member);
        let in_use = &member.figures.etcd_bytes_in_use;
        in_use.store(499_999, Ordering::Relaxed);
        write(&member, 1);
        place.pass(seconds(5));
        assert!(!last.is_due(&member));
        in_use.store(500_000, Ordering::Relaxed);
        assert!(last.is_due(&member));
        let last = snapshotted(&member);
        write(&member, 1);
        place.pass(Duration::from_millis(4_999));
        assert!(!last.is_due(&member), "it has to rest");
    }

    #[test]
    fn who_begins_to_lead_has_its_first_snapshot_after_a_rest() {
        let (member, place) = member(options());
        write(&member, 1);
        let first = Snapshotted::begin(&member);
        place.pass(Duration::from_millis(4_999));
        assert!(!first.is_due(&member));
        place.pass(Duration::from_millis(1));
        assert!(first.is_due(&member));
    }

    #[test]
    fn at_seventy_percent_nothing_may_grow_and_below_it_may_again() {
        let (member, _) = member(options());
        let is_tight = |bytes| {
            note_tight(&member, bytes);
            member.figures.is_tight.load(Ordering::Relaxed)
        };
        assert!(!is_tight(699_999));
        assert!(is_tight(700_000));
        assert!(is_tight(1_000_000));
        assert!(!is_tight(699_999));
    }

    /// Has the member lead, and attends to its log for so many looks at etcd.
    fn attend_to(member: &Arc<Member>, etcd: &mut TestEtcd, keys: &Keys, leader: u64, looks: u64) {
        struct Ending<'a> {
            etcd: &'a mut TestEtcd,
            member: Arc<Member>,
            looks: u64,
        }
        impl Etcd for Ending<'_> {
            fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
                if *ask == Ask::Status {
                    match self.looks.checked_sub(1) {
                        Some(left) => self.looks = left,
                        None => self.member.end(),
                    }
                }
                self.etcd.call(ask, within)
            }
        }
        member.tenancy.change(|standing, now| {
            standing.granted(now, 1, 5);
            standing.leads(now, now);
        });
        let mut ending = Ending {
            etcd,
            member: Arc::clone(member),
            looks,
        };
        attend(member, &mut ending, keys, leader);
    }

    #[test]
    fn etcd_is_told_to_forget_unless_somebody_said_that_it_is_not() {
        for compacts in [true, false] {
            let options = Options {
                compacts,
                ..options()
            };
            let (member, _) = member(options);
            let keys = Keys::new("test", 0);
            let (mut etcd, leader) = TestEtcd::led(&keys);
            write(&member, 1);
            attend_to(&member, &mut etcd, &keys, leader, 6);
            let snapshots = member.figures.snapshots.load(Ordering::Relaxed);
            assert_eq!((snapshots, etcd.has_compacted()), (1, compacts));
        }
    }

    /// How long is waited behind each piece of a snapshot of some pieces.
    fn rests(member: &Member, place: &TestPlace) -> Vec<Duration> {
        let keys = Keys::new("test", 0);
        let (mut etcd, leader) = TestEtcd::led(&keys);
        let mut frames = Vec::new();
        for number in 1..200 {
            let record = Record::Counted {
                key: format!("counter-{number}").into_bytes()[..].into(),
                value: 1,
            };
            let clocks = || Clocks {
                now: Nanos(0),
                wall_ms: 0,
            };
            push_record(&mut frames, SALT, number, &record, clocks);
        }
        let logged = Logged {
            leader,
            nonce: [1, 1],
            epoch: 1,
            first: 1,
            frames,
        };
        let mut appender = Appender::new(keys.clone(), leader, 0);
        let begun = appender.begin(&logged);
        succeeded(etcd.call(&begun, WITHIN).unwrap()).unwrap();
        place.take_waits();
        snapshot(member, &mut etcd, &keys, leader, &|| true).unwrap();
        place.take_waits()
    }

    #[test]
    fn pieces_are_no_more_than_four_mebibytes_a_second() {
        let (member, place) = member(options());
        let rests = rests(&member, &place);
        assert!(rests.len() > 5, "{} pieces", rests.len());
        // A kibibyte is the 4,096th part of it.
        let each = Duration::from_nanos(1_000_000_000 / 4_096);
        assert!(rests.iter().all(|&it| it == each), "{rests:?}");
    }
}
