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
    let mut is_refused = false;
    loop {
        if tenancy.change(|standing, _| standing.lease()) != Some(lease) {
            return;
        }
        let sent = tenancy.now();
        match renew(member, held, &mut *etcd) {
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

/// Renews the lease, and looks whether it is still worth something. Whoever does not lead yet need not have the key.
fn renew(member: &Member, held: &Held, etcd: &mut dyn Etcd) -> Result<Renewed, Trouble> {
    let within = member.ttl_part(10);
    let other = || Trouble::Garbled("an answer to another question".to_owned());
    let keep_alive = Ask::KeepAlive { lease: held.lease };
    let Answer::KeptAlive { ttl_s } = etcd.call(&keep_alive, within)? else {
        return Err(other());
    };
    let had_key = matches!(member.tenancy.role(), Role::Leader | Role::Paused);
    if ttl_s == 0 || !had_key {
        return Ok(Renewed::Until(ttl_s));
    }
    let Answer::Range { got, .. } = etcd.call(&Ask::Range(Get::one(&held.key)), within)? else {
        return Err(other());
    };
    let is_ours = got.kvs.first().is_some_and(|kv| kv.value == held.name);
    Ok(match is_ours {
        true => Renewed::Until(ttl_s),
        false => Renewed::InVain,
    })
}
