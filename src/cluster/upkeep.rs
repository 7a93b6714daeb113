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
use crate::store::etcd::{Keys, NotRead, prepare, succeeded};

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
    while is_leading() {
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
                 that take room are refused with error_storage"
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
    // Until it is published and the old one is deleted there are two, and the log. A full etcd would be
    // worse than a long log: it grants no leases, so that nobody could take over.
    let in_use = member.figures.etcd_bytes_in_use.load(Ordering::Relaxed);
    let most = options.quota_bytes / 100 * FULL_PERCENT;
    if in_use.saturating_add(snapshot.bytes()) > most {
        return Err(NotRead::Trouble(Trouble::NoSpace(format!(
            "a snapshot of {} bytes does not fit beside the {in_use} in use, with --etcd-quota {}",
            snapshot.bytes(),
            options.quota_bytes
        ))));
    }
    let rest = options.batch_bytes as u64 * 1_000_000_000 / PIECES_BYTES_PER_S;
    for piece in snapshot.pieces(keys, leader) {
        succeeded(etcd.call(&piece, WITHIN)?)?;
        member.nap(Duration::from_nanos(rest));
    }
    snapshot.publish(etcd, keys, leader, WITHIN)?;
    member.figures.snapshots.fetch_add(1, Ordering::Relaxed);
    info!(
        "a snapshot of {} bytes stands for the log up to entry {}",
        snapshot.bytes(),
        snapshot.seq()
    );
    Ok(Some(snapshot.revision()))
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
    use std::io;

    use super::super::member::Options;
    use super::super::role::Terms;
    use super::*;
    use crate::base::Millis;
    use crate::etcd::{Compare, Model, Op, Watching};
    use crate::store::etcd::{Bell, Keys, Place, create};

    /// Time stands still, and nobody waits for it.
    struct Still;

    impl Place for Still {
        fn now(&self) -> Nanos {
            Nanos(1)
        }

        fn wake(&self) {}

        fn spawn(&self, _: &'static str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            Ok(())
        }

        fn wait(&self, _: &Arc<Bell>, _: u64, _: Duration) {}

        fn etcd(&self, _: usize) -> Box<dyn Etcd + Send> {
            Box::new(TestEtcd::default())
        }

        fn watch(&self, _: usize) -> Box<dyn Watching + Send> {
            panic!("nobody watches")
        }
    }

    #[derive(Default)]
    struct TestEtcd(Model);

    impl Etcd for TestEtcd {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            self.0.apply(Nanos(1), ask)
        }
    }

    #[test]
    fn a_snapshot_that_would_fill_etcd_is_not_begun() {
        let options = Options {
            cluster: "test".to_owned(),
            shard: crate::shard::Shard::WHOLE,
            terms: Terms {
                ttl_s: 5,
                margin: Millis(500),
            },
            advertise: String::new(),
            advertise_http: String::new(),
            batch_bytes: 1 << 10,
            trim_bytes: 1,
            quota_bytes: 1_000_000,
            compacts: true,
            nonce: 1,
        };
        let keys = Keys::new("test", 0);
        let member = Member::new(options, Arc::new(Still));
        let mut etcd = TestEtcd::default();
        create(&mut etcd, &keys, WITHIN).unwrap();
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
        let in_use = &member.figures.etcd_bytes_in_use;
        in_use.store(950_000, Ordering::Relaxed);
        let before = etcd.0.revision();
        let refused = snapshot(&member, &mut etcd, &keys, leader, &|| true).unwrap_err();
        assert!(refused.to_string().contains("does not fit"), "{refused}");
        assert_eq!(etcd.0.revision(), before, "nothing was written");
        in_use.store(900_000, Ordering::Relaxed);
        snapshot(&member, &mut etcd, &keys, leader, &|| true).unwrap();
        assert!(etcd.0.value(&keys.snap()).is_some());
    }
}
