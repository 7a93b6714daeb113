//! The thread that keeps a lease alive, on a connection of its own, so that nothing else delays it.
//!
//! It asks every fifth of the time to live and waits for a tenth of it; then it asks the next member. It
//! decides nothing: what an answer means is for the state machine (`role.rs`) to say.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use log::warn;

use super::member::Member;
use crate::etcd::{Answer, Ask, Etcd};

/// After a question that could not be sent or was not answered.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Keeps the lease alive for as long as this member has it.
pub(super) fn keep(member: &Arc<Member>, lease: u64) -> io::Result<()> {
    let place = Arc::clone(member.place());
    let etcd = place.etcd(lease as usize % 64);
    let member = Arc::clone(member);
    let keep = move || run(&member, lease, etcd);
    place.spawn("latchd-lease", Box::new(keep))
}

fn run(member: &Member, lease: u64, mut etcd: Box<dyn Etcd + Send>) {
    let tenancy = &member.tenancy;
    let (every, within) = (member.ttl_part(5), member.ttl_part(10));
    let mut is_refused = false;
    loop {
        if tenancy.change(|standing, _| standing.lease()) != Some(lease) {
            return;
        }
        let sent = tenancy.now();
        match etcd.call(&Ask::KeepAlive { lease }, within) {
            Ok(Answer::KeptAlive { ttl_s }) => {
                tenancy.change(|standing, now| standing.kept_alive(lease, sent, now, ttl_s));
                let spent = Duration::from_nanos(tenancy.now().since(sent));
                is_refused = false;
                member.nap(every.saturating_sub(spent));
            }
            // That etcd does not answer passes; that it does not let us in does not.
            Err(why) if why.is_refusal() => {
                if !std::mem::replace(&mut is_refused, true) {
                    warn!("the lease of the leader cannot be renewed: {why}");
                }
                member.nap(AGAIN_AFTER);
            }
            Ok(_) | Err(_) => member.nap(AGAIN_AFTER),
        }
        if member.is_over() {
            return; // the lease is given back, or ends by itself
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::role::Role;
    use super::super::testing::{TestPlace, member, options};
    use super::*;
    use crate::base::Nanos;
    use crate::etcd::Trouble;

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
        run(&member, 7, Box::new(etcd));
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
}
