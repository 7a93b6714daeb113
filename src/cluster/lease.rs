//! The thread that keeps a lease alive, on a connection of its own, so that nothing else delays it.
//!
//! It asks every fifth of the time to live and waits for a tenth of it; then it asks the next member. It
//! decides nothing: what an answer means is for the state machine (`role.rs`) to say. If the process ends before it
//! leads, this thread gives the lease back.
//!
//! A lease that lives is not enough for a leader. Somebody may have deleted its key by hand, or put back a backup
//! that has the lease and not the key, and then another one leads. So it is looked at the key as well, by
//! another thread: etcd's leader renews a lease by itself, but has to hear from the others, and to have done what was
//! written before, to say what there is. Where that takes long it must not keep renewals waiting.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use log::{info, warn};

use super::member::Member;
use super::role::Role;
use crate::base::Nanos;
use crate::etcd::{Answer, Ask, Etcd, Get, Trouble};

/// After a question that could not be sent or was not answered.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What is kept.
pub(super) struct Held {
    pub(super) lease: u64,
    /// The key of the leader, and what stands there if it is this member with this lease.
    pub(super) key: Vec<u8>,
    pub(super) name: Vec<u8>,
}

/// When a look at the key was begun last that has found this member there.
struct Looked(AtomicU64);

impl Looked {
    fn new(now: Nanos) -> Self {
        Self(AtomicU64::new(now.0))
    }

    fn note(&self, began: Nanos) {
        self.0.store(began.0, Ordering::SeqCst);
    }

    /// Whether it is so long ago that nothing is to be renewed. A look takes a quarter of the lease at most and the
    /// next one follows, so as long as they are answered it never is.
    fn is_overdue(&self, member: &Member) -> bool {
        let since = member
            .tenancy
            .now()
            .since(Nanos(self.0.load(Ordering::SeqCst)));
        Duration::from_nanos(since) >= member.ttl_part(2)
    }
}

/// Keeps the lease alive for as long as this member has it.
pub(super) fn keep(member: &Arc<Member>, held: Held) -> io::Result<()> {
    let place = Arc::clone(member.place());
    let first = held.lease as usize % 64;
    let (to_renew, to_look) = (place.etcd(first), place.etcd(first + 1));
    let (held, looked) = (Arc::new(held), Arc::new(Looked::new(member.tenancy.now())));
    let (member_too, held_too) = (Arc::clone(member), Arc::clone(&held));
    let looked_too = Arc::clone(&looked);
    let look = move || look_on(&member_too, &held_too, to_look, &looked_too);
    place.spawn("latchd-look", Box::new(look))?;
    let member = Arc::clone(member);
    let renew = move || renew_on(&member, held.lease, to_renew, &looked);
    place.spawn("latchd-lease", Box::new(renew))
}

/// Whether this time as a leader, or on the way to it, goes on.
fn is_held(member: &Member, lease: u64) -> bool {
    // If the process ends the lease is given back, or ends by itself.
    !member.is_over() && member.tenancy.change(|standing, _| standing.lease()) == Some(lease)
}

/// Whoever does not lead yet need not have the key.
fn leads(member: &Member) -> bool {
    matches!(member.tenancy.role(), Role::Leader | Role::Paused)
}

fn renew_on(member: &Member, lease: u64, mut etcd: Box<dyn Etcd + Send>, looked: &Looked) {
    let every = Duration::from_millis(member.options.terms.renew_every().0);
    let mut is_refused = false;
    while is_held(member, lease) {
        let began = member.tenancy.now();
        match renew(member, lease, &mut *etcd, looked) {
            Ok(true) => {
                let spent = Duration::from_nanos(member.tenancy.now().since(began));
                is_refused = false;
                member.nap(every.saturating_sub(spent));
            }
            Ok(false) => member.nap(AGAIN_AFTER),
            Err(why) => {
                if is_to_be_told(&mut is_refused, &why) {
                    warn!("the lease of the leader cannot be renewed: {why}");
                }
                member.nap(AGAIN_AFTER);
            }
        }
    }
    give_back(member, lease, &mut *etcd);
}

/// Revokes the lease if the process ends before it leads, so that the next leader need not wait for its end. The
/// thread that follows may be waiting for a slow etcd, which this connection is not.
fn give_back(member: &Member, lease: u64, etcd: &mut dyn Etcd) {
    let began = member.tenancy.now();
    while member.unused_lease() == Some(lease) {
        let spent = Duration::from_nanos(member.tenancy.now().since(began));
        let left = member.ttl_part(1).saturating_sub(spent);
        if left.is_zero() {
            return; // it has ended by itself
        }
        // Half of it, so that another member can be asked if this one is silent.
        match etcd.call(&Ask::Revoke { lease }, left / 2) {
            Ok(_) | Err(Trouble::NoLease) => member.gave_back(),
            Err(_) => member.pause(AGAIN_AFTER.min(left)),
        }
    }
}

/// Renews the lease; returns whether that was done. A look at the key that is not answered is no reason to fall silent; but
/// whoever could not look for half of its time does not renew before it can, so that another one leads in
/// the end.
fn renew(
    member: &Member,
    lease: u64,
    etcd: &mut dyn Etcd,
    looked: &Looked,
) -> Result<bool, Trouble> {
    if leads(member) && looked.is_overdue(member) {
        return Ok(false);
    }
    let sent = member.tenancy.now();
    let keep_alive = Ask::KeepAlive { lease };
    let within = Duration::from_millis(member.options.terms.renew_within().0);
    let Answer::KeptAlive { ttl_s } = etcd.call(&keep_alive, within)? else {
        return Err(other_answer());
    };
    let kept_alive = |standing: &mut super::role::Standing, now| {
        standing.kept_alive(lease, sent, now, ttl_s);
    };
    member.tenancy.change(kept_alive);
    Ok(true)
}

fn look_on(member: &Member, held: &Held, mut etcd: Box<dyn Etcd + Send>, looked: &Looked) {
    let every = member.ttl_part(5);
    let mut is_refused = false;
    while is_held(member, held.lease) {
        let began = member.tenancy.now();
        if !leads(member) {
            looked.note(began);
            member.nap(every);
            continue;
        }
        match has_key(member, held, &mut *etcd) {
            Ok(true) => {
                looked.note(began);
                let spent = Duration::from_nanos(member.tenancy.now().since(began));
                is_refused = false;
                member.nap(every.saturating_sub(spent));
            }
            Ok(false) => {
                Loss::of(member, held.lease).tell();
                member
                    .tenancy
                    .change(|standing, _| standing.fence_of(held.lease));
            }
            Err(why) => {
                if is_to_be_told(&mut is_refused, &why) {
                    warn!("the key of the leader cannot be looked at: {why}");
                }
                member.nap(AGAIN_AFTER);
            }
        }
    }
}

/// How a leader comes to have no key.
#[derive(Debug, PartialEq, Eq)]
enum Loss {
    /// A renewal was refused in the meantime, and this time as a leader is over already.
    Known,
    /// It could not renew for longer than its lease, as after a pause of the process. The key went with the lease.
    LeaseRanOut,
    /// Its lease is good, as far as it knows: the key was deleted by hand, or etcd restored.
    KeyOnly,
}

impl Loss {
    fn of(member: &Member, lease: u64) -> Self {
        match member.tenancy.role() {
            _ if !is_held(member, lease) => Self::Known,
            Role::Leader => Self::KeyOnly,
            _ => Self::LeaseRanOut,
        }
    }

    fn tell(&self) {
        match self {
            Self::Known => {}
            Self::LeaseRanOut => info!("the lease of this leader ran out before it could renew it"),
            Self::KeyOnly => warn!(
                "the key of the leader is not this member's any more, although its lease lives"
            ),
        }
    }
}

/// Whether what stands under the leader's key is this member with this lease. It is waited for no longer than it
/// may speak: what is known then comes too late.
fn has_key(member: &Member, held: &Held, etcd: &mut dyn Etcd) -> Result<bool, Trouble> {
    let look = Ask::Range(Get::one(&held.key));
    let until = member.tenancy.change(|standing, _| standing.speaks_until());
    let left = Duration::from_nanos(until.since(member.tenancy.now()));
    let patience = match left.is_zero() {
        true => member.ttl_part(4), // it is silent, and wants to know whether it may go on
        false => member.ttl_part(4).min(left),
    };
    let Answer::Range { got, .. } = etcd.call(&look, patience)? else {
        return Err(other_answer());
    };
    Ok(got.kvs.first().is_some_and(|kv| kv.value == held.name))
}

/// That etcd does not answer passes; that it does not let us in does not, and is said once.
fn is_to_be_told(is_refused: &mut bool, why: &Trouble) -> bool {
    why.is_refusal() && !std::mem::replace(is_refused, true)
}

fn other_answer() -> Trouble {
    Trouble::Garbled("an answer to another question".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::testing::{TestPlace, member, options};
    use super::*;
    use crate::etcd::{Got, Kv};

    fn held() -> Held {
        Held {
            lease: 7,
            key: b"leader".to_vec(),
            name: b"us".to_vec(),
        }
    }

    /// How long it takes to answer, and what; behind the last one the lease is gone.
    type Script = Vec<(u64, Option<u64>)>;

    struct TestEtcd {
        place: Arc<TestPlace>,
        script: std::vec::IntoIter<(u64, Option<u64>)>,
        asked: Arc<Mutex<Vec<(Nanos, Duration)>>>,
    }

    impl Etcd for TestEtcd {
        fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
            assert_eq!(*ask, Ask::KeepAlive { lease: 7 });
            let now = crate::store::etcd::Place::now(&*self.place);
            self.asked.lock().unwrap().push((now, within));
            let (took_ms, ttl_s) = self.script.next().unwrap_or((0, Some(0)));
            self.place.pass(Duration::from_millis(took_ms));
            match ttl_s {
                Some(ttl_s) => Ok(Answer::KeptAlive { ttl_s }),
                None => Err(Trouble::Unanswered("it is busy".to_owned())),
            }
        }
    }

    /// Keeps a lease of five seconds: when it was asked for, in milliseconds since the beginning, and for how
    /// long each was waited for at most.
    fn keep_alive(script: Script) -> (Vec<u64>, Vec<Duration>) {
        let (member, place) = member(options());
        let began = member.tenancy.now();
        member
            .tenancy
            .change(|standing, now| standing.granted(now, 7, 5));
        let asked = Arc::default();
        let etcd = TestEtcd {
            place,
            script: script.into_iter(),
            asked: Arc::clone(&asked),
        };
        let looked = Looked::new(began);
        renew_on(&member, 7, Box::new(etcd), &looked);
        assert_eq!(member.tenancy.role(), Role::Fenced);
        let asked = asked.lock().unwrap();
        let at = asked
            .iter()
            .map(|(at, _)| at.since(began) / 1_000_000)
            .collect();
        (at, asked.iter().map(|(_, within)| *within).collect())
    }

    #[test]
    fn it_is_renewed_every_fifth_of_its_time_however_long_an_answer_takes() {
        let (asked, _) = keep_alive(vec![(0, Some(5)), (400, Some(5)), (900, Some(5))]);
        assert_eq!(asked, [0, 1_000, 2_000, 3_000]);
    }

    #[test]
    fn a_try_takes_a_tenth_of_its_time_at_most_and_the_next_follows_at_once() {
        let (asked, within) = keep_alive(vec![(500, None), (500, None), (10, Some(5))]);
        assert_eq!(asked, [0, 550, 1_100, 2_100]);
        assert_eq!(within, [Duration::from_millis(500); 4]);
    }

    /// An etcd whose lease lives, and where these are the names under the leader's key, one after the other.
    struct Renamed(std::array::IntoIter<&'static str, 3>);

    impl Etcd for Renamed {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            let Ask::Range(get) = ask else {
                return Ok(Answer::KeptAlive { ttl_s: 5 });
            };
            let kvs = self.0.next().filter(|it| !it.is_empty()).map(|name| Kv {
                key: get.key.clone(),
                value: name.as_bytes().to_vec(),
                ..Kv::default()
            });
            let got = Got {
                kvs: kvs.into_iter().collect(),
                ..Got::default()
            };
            Ok(Answer::Range { revision: 1, got })
        }
    }

    #[test]
    fn a_leader_whose_key_is_gone_or_another_s_falls_silent_although_its_lease_lives() {
        for names in [["us", "us", ""], ["us", "us", "them"]] {
            let (member, _) = member(options());
            let began = member.tenancy.now();
            member.tenancy.change(|standing, now| {
                standing.granted(now, 7, 5);
                standing.leads(now, now);
            });
            let etcd = Box::new(Renamed(names.into_iter()));
            look_on(&member, &held(), etcd, &Looked::new(began));
            assert_eq!(member.tenancy.role(), Role::Fenced);
            let spent = member.tenancy.now().since(began);
            assert_eq!(spent, 2_000_000_000, "two looks were good");
        }
    }

    #[test]
    fn lease_that_ran_out_in_a_pause_is_told_from_a_key_that_was_deleted() {
        let (member, place) = leader();
        assert_eq!(Loss::of(&member, 7), Loss::KeyOnly);
        place.pass(Duration::from_millis(4_500));
        assert_eq!(Loss::of(&member, 7), Loss::LeaseRanOut);
        member.tenancy.change(|standing, _| standing.fence_of(7));
        assert_eq!(Loss::of(&member, 7), Loss::Known);
    }

    /// An etcd that says once that it cannot be reached, and how often it was asked to revoke.
    struct Revoked(Arc<Mutex<u32>>);

    impl Etcd for Revoked {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            assert_eq!(*ask, Ask::Revoke { lease: 7 });
            let mut asked = self.0.lock().unwrap();
            *asked += 1;
            match *asked {
                1 => Err(Trouble::Unreachable("gone".to_owned())),
                _ => Ok(Answer::Done),
            }
        }
    }

    #[test]
    fn lease_of_a_candidate_that_is_told_to_end_is_revoked_and_that_of_a_leader_is_not() {
        let (candidate, _) = member(options());
        candidate
            .tenancy
            .change(|standing, now| standing.granted(now, 7, 5));
        candidate.give_up();
        candidate.end();
        assert_eq!(candidate.unused_lease(), Some(7));
        let asked = Arc::default();
        let etcd = Box::new(Revoked(Arc::clone(&asked)));
        renew_on(&candidate, 7, etcd, &Looked::new(candidate.tenancy.now()));
        assert_eq!(
            (*asked.lock().unwrap(), candidate.unused_lease()),
            (2, None)
        );

        // The thread that writes the log does that, when it has written what was decided.
        let (leader, _) = leader();
        leader.end();
        let asked = Arc::default();
        let etcd = Box::new(Revoked(Arc::clone(&asked)));
        renew_on(&leader, 7, etcd, &Looked::new(leader.tenancy.now()));
        assert_eq!(*asked.lock().unwrap(), 0);
    }

    /// An etcd that renews, and takes so long to say who leads.
    struct Slow(Arc<TestPlace>, Duration);

    impl Etcd for Slow {
        fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
            let Ask::Range(get) = ask else {
                return Ok(Answer::KeptAlive { ttl_s: 5 });
            };
            self.0.pass(self.1.min(within));
            if self.1 > within {
                return Err(Trouble::Unanswered("it is busy".to_owned()));
            }
            let kv = Kv {
                key: get.key.clone(),
                value: b"us".to_vec(),
                ..Kv::default()
            };
            let got = Got {
                kvs: vec![kv],
                ..Got::default()
            };
            Ok(Answer::Range { revision: 1, got })
        }
    }

    fn leader() -> (Arc<Member>, Arc<TestPlace>) {
        let (member, place) = member(options());
        member.tenancy.change(|standing, now| {
            standing.granted(now, 7, 5);
            standing.leads(now, now);
        });
        (member, place)
    }

    #[test]
    fn whoever_cannot_look_at_its_key_lets_the_lease_run_out_in_the_end() {
        let (member, place) = leader();
        let looked = Looked::new(member.tenancy.now());
        let mut etcd = Slow(Arc::clone(&place), Duration::from_secs(9));
        let mut renewals = Vec::new();
        for second in 0..8 {
            if renew(&member, 7, &mut etcd, &looked).unwrap() {
                renewals.push(second);
            }
            place.pass(Duration::from_secs(1));
        }
        assert_eq!(renewals, [0, 1, 2]);
        assert_eq!(member.tenancy.role(), Role::Paused);
    }

    #[test]
    fn a_look_may_take_a_quarter_of_the_lease_and_no_longer_than_it_may_speak() {
        let look = |took_ms, spent_ms| {
            let (member, place) = leader();
            place.pass(Duration::from_millis(spent_ms));
            let began = member.tenancy.now();
            let mut etcd = Slow(place, Duration::from_millis(took_ms));
            let found = has_key(&member, &held(), &mut etcd).unwrap_or(false);
            (found, member.tenancy.now().since(began) / 1_000_000)
        };
        assert_eq!(look(1_200, 0), (true, 1_200));
        assert_eq!(look(1_300, 0), (false, 1_250));
        assert_eq!(
            look(1_200, 3_600),
            (false, 900),
            "4.5 s after it was renewed"
        );
        assert_eq!(look(1_200, 4_600), (true, 1_200), "silent already");
    }
}
