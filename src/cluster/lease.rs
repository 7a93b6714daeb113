//! The thread that keeps a lease alive, on a connection of its own, so that nothing else delays it.
//!
//! It asks every fifth of the time to live and waits for a tenth of it; then it asks the next member. It
//! decides nothing: what an answer means is for the state machine (`role.rs`) to say.
//!
//! A lease that lives is not enough for a leader. Somebody may have deleted its key by hand, or put back a backup
//! that has the lease and not the key, and then another one leads. So it is looked at the key as well.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use log::warn;

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

/// Keeps the lease alive for as long as this member has it.
pub(super) fn keep(member: &Arc<Member>, held: Held) -> io::Result<()> {
    let place = Arc::clone(member.place());
    let etcd = place.etcd(held.lease as usize % 64);
    let member = Arc::clone(member);
    let keep = move || run(&member, &held, etcd);
    place.spawn("latchd-lease", Box::new(keep))
}

fn run(member: &Member, held: &Held, mut etcd: Box<dyn Etcd + Send>) {
    let (tenancy, lease) = (&member.tenancy, held.lease);
    let every = member.ttl_part(5);
    let (mut is_refused, mut looked) = (false, tenancy.now());
    loop {
        if tenancy.change(|standing, _| standing.lease()) != Some(lease) {
            return;
        }
        let sent = tenancy.now();
        match renew(member, held, &mut *etcd, &mut looked) {
            Ok(Renewed::Until(ttl_s)) => {
                tenancy.change(|standing, now| standing.kept_alive(lease, sent, now, ttl_s));
                let spent = Duration::from_nanos(tenancy.now().since(sent));
                is_refused = false;
                member.nap(every.saturating_sub(spent));
            }
            Ok(Renewed::InVain) => {
                warn!(
                    "the key of the leader is not this member's any more, although its lease lives"
                );
                tenancy.change(|standing, _| standing.fence_of(lease));
            }
            // That etcd does not answer passes; that it does not let us in does not.
            Err(why) if why.is_refusal() => {
                if !std::mem::replace(&mut is_refused, true) {
                    warn!("the lease of the leader cannot be renewed: {why}");
                }
                member.nap(AGAIN_AFTER);
            }
            Err(_) => member.nap(AGAIN_AFTER),
        }
        if member.is_over() {
            return; // the lease is given back, or ends by itself
        }
    }
}

/// What has come of a renewal.
enum Renewed {
    /// It is good for so many seconds; 0 if there is no such lease any more.
    Until(u64),
    /// It is good, but this member leads no longer.
    InVain,
}

/// Renews the lease, and looks whether it is still worth something. Whoever does not lead yet need not have the key. A look
/// that is not answered is no reason to fall silent; but whoever could not look for half of its time does not renew before
/// it can, so that another one leads in the end.
fn renew(
    member: &Member,
    held: &Held,
    etcd: &mut dyn Etcd,
    looked: &mut Nanos,
) -> Result<Renewed, Trouble> {
    let now = member.tenancy.now();
    let leads = matches!(member.tenancy.role(), Role::Leader | Role::Paused);
    let is_overdue = Duration::from_nanos(now.since(*looked)) >= member.ttl_part(2);
    if leads && is_overdue {
        if !has_key(member, held, etcd)? {
            return Ok(Renewed::InVain);
        }
        *looked = now;
    }
    let keep_alive = Ask::KeepAlive { lease: held.lease };
    let Answer::KeptAlive { ttl_s } = etcd.call(&keep_alive, member.ttl_part(10))? else {
        return Err(other_answer());
    };
    if leads && !is_overdue && ttl_s != 0 {
        match has_key(member, held, etcd) {
            Ok(true) => *looked = now,
            Ok(false) => return Ok(Renewed::InVain),
            Err(_) => {}
        }
    }
    Ok(Renewed::Until(ttl_s))
}

/// Whether what stands under the leader's key is this member with this lease.
fn has_key(member: &Member, held: &Held, etcd: &mut dyn Etcd) -> Result<bool, Trouble> {
    let look = Ask::Range(Get::one(&held.key));
    let Answer::Range { got, .. } = etcd.call(&look, member.ttl_part(10))? else {
        return Err(other_answer());
    };
    Ok(got.kvs.first().is_some_and(|kv| kv.value == held.name))
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
        run(&member, &held(), Box::new(etcd));
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
            run(&member, &held(), Box::new(Renamed(names.into_iter())));
            assert_eq!(member.tenancy.role(), Role::Fenced);
            let spent = member.tenancy.now().since(began);
            assert_eq!(spent, 2_000_000_000, "two renewals were good");
        }
    }

    /// An etcd that renews and does not say who leads. After ten seconds it is enough.
    struct Deaf {
        member: Arc<Member>,
        renewals: Arc<Mutex<u64>>,
    }

    impl Etcd for Deaf {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            if self.member.tenancy.role() == Role::Paused {
                self.member.end();
            }
            match ask {
                Ask::KeepAlive { .. } => {
                    *self.renewals.lock().unwrap() += 1;
                    Ok(Answer::KeptAlive { ttl_s: 5 })
                }
                _ => Err(Trouble::Unanswered("it is busy".to_owned())),
            }
        }
    }

    #[test]
    fn whoever_cannot_look_at_its_key_lets_the_lease_run_out_in_the_end() {
        let (member, _) = member(options());
        member.tenancy.change(|standing, now| {
            standing.granted(now, 7, 5);
            standing.leads(now, now);
        });
        let renewals = Arc::default();
        let etcd = Deaf {
            member: Arc::clone(&member),
            renewals: Arc::clone(&renewals),
        };
        run(&member, &held(), Box::new(etcd));
        assert_eq!(*renewals.lock().unwrap(), 3, "at 0, 1 and 2 seconds");
        assert_eq!(member.tenancy.role(), Role::Paused);
    }
}
