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
