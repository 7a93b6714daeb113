//! How a standby comes to lead: a lease, the leader's key, the log to its end, and an entry that begins an epoch.
//!
//! On the thread that follows (`follow.rs`). Nothing is decided here that etcd does not guard: whoever is too late, or
//! believes what is not so any more, is refused, and follows on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::info;

use super::follow::{Anew, Follower, PAUSE_SHORT};
use super::leader_key::LeaderKey;
use super::lease;
use super::news::News;
use super::role::Role;
use crate::base::Nanos;
use crate::etcd::{Answer, Ask, Compare, Get, Got, Kv, Op, Trouble};
use crate::store::etcd::{Appender, Lead, Logged, Next, Position, map_key, next_page};

/// How long an answer is waited for, to a write at first and to anything at most. With an etcd that is slow, but not gone, a
/// patience that does not grow hears nothing at all, and has done what it asked for all the same.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
const PATIENCE_MOST: Duration = Duration::from_secs(8);

/// The leader's key is ours.
struct Taken {
    /// The revision at which it was created.
    leader: u64,
    /// What stood in the log at that very moment, where one had got to and behind it. Nobody can append any more, so
    /// this is all there is, but for what does not fit into a page. None if it was taken by a try whose
    /// answer was lost.
    read: Option<[Got; 2]>,
}

impl Taken {
    fn found(kv: &Kv) -> Self {
        Self {
            leader: kv.created,
            read: None,
        }
    }
}

/// Twice as long, after an answer that did not come.
pub(super) fn grown(patience: Duration) -> Duration {
    (patience * 2).min(PATIENCE_MOST).max(patience)
}

/// Whether it was sent and nothing was heard in time.
pub(super) fn is_unanswered<T>(answer: &Result<T, Trouble>) -> bool {
    matches!(answer, Err(Trouble::Unanswered(_)))
}

impl Follower {
    /// Nobody leads: tries to. Returns whether this member leads now.
    pub(super) fn stand(&mut self, position: &mut Position) -> Result<bool, Anew> {
        if self.member.is_over() || self.member.rests() {
            return Ok(false);
        }
        let member = Arc::clone(&self.member);
        let tenancy = &member.tenancy;
        let ttl_s = member.options.terms.ttl_s;
        let sent = tenancy.now();
        let granted = self.etcd.call(&Ask::Grant { ttl_s }, self.grant_within);
        self.grant_within = match is_unanswered(&granted) {
            true => grown(self.grant_within),
            false => member.ttl_part(2),
        };
        let Answer::Granted { lease, ttl_s } = granted? else {
            return Err(Trouble::Garbled("no lease".to_owned()).into());
        };
        let is_candidate = tenancy.change(|standing, _| {
            standing.granted(sent, lease, ttl_s);
            standing.lease() == Some(lease)
        });
        // The process ends. No other thread knows of this lease.
        if !is_candidate {
            let _ = self.etcd.call(&Ask::Revoke { lease }, PATIENCE_FIRST); // or it ends by itself
            return Ok(false);
        }
        let leader = lease::Held {
            lease,
            key: self.keys.leader(),
            name: self.name(lease),
        };
        let kept = lease::keep(&member, leader).and_then(|()| self.warm_up(lease));
        let kept = kept.map_err(|error| Trouble::Unreachable(error.to_string()).into());
        let outcome = kept.and_then(|()| self.take_over(position, lease));
        match outcome {
            Ok(Some(lead)) => {
                let epoch = position.epoch;
                info!(
                    "cluster: leads from entry {} on, epoch {epoch}",
                    position.seq
                );
                self.note(position);
                member.figures.lag_entries.store(0, Ordering::Relaxed);
                member
                    .figures
                    .number
                    .store(position.number, Ordering::Relaxed);
                self.tell(News::Lead(Box::new(lead)))?;
                Ok(true)
            }
            other => {
                // If it is not answered the lease ends by itself, and the key with it.
                let _ = self.etcd.call(&Ask::Revoke { lease }, member.ttl_part(2));
                tenancy.change(|standing, _| standing.withdraw());
                if tenancy.role() == Role::Fenced {
                    member.reload(); // the lease ended while we were at it; nothing was served
                }
                other.map(|_| false)
            }
        }
    }

    /// Has a lease: becomes the leader, reads the log to its end, and begins an epoch. `None`: another
    /// one leads.
    fn take_over(&mut self, position: &mut Position, lease: u64) -> Result<Option<Lead>, Anew> {
        let member = Arc::clone(&self.member);
        let options = &member.options;
        let mut patience = PATIENCE_FIRST;
        let Some(Taken { leader, mut read }) = self.take_key(position, lease, &mut patience)?
        else {
            return Ok(None);
        };
        self.keys = self.keys.clone().led_as(self.name(lease));
        let mut nonce = [options.nonce, lease];
        loop {
            // Nobody else can append any more, so what is read now is all there is; if it stands on what
            // we have replayed. That there is an entry where ours goes on is all that etcd looks at.
            let has_more = match read.take() {
                Some([here, page]) => {
                    position.is_here(here.kvs.first())?;
                    self.take_page(position, &page)?;
                    page.more
                }
                None => {
                    self.look_here(position)?;
                    true
                }
            };
            if has_more {
                self.read_on(position)?;
            }
            nonce[1] = nonce[1].wrapping_add(1 << 32);
            let logged = Logged {
                leader,
                nonce,
                epoch: position.epoch + 1,
                first: position.number + 1,
                frames: Vec::new(),
            };
            let mut appender = Appender::new(self.keys.clone(), leader, position.seq);
            let mut ask = appender.begin(&logged);
            let committed = loop {
                let sent = member.tenancy.now();
                let answer = self.etcd.call(&ask, patience);
                let is_answered = answer.is_ok();
                if is_unanswered(&answer) {
                    patience = grown(patience);
                }
                match appender.answered(answer) {
                    Next::Committed { proves: true } => break Some(sent),
                    Next::Committed { proves: false } => break Some(Nanos(0)),
                    Next::Ask(next) | Next::Full(next) => ask = next,
                    Next::Fenced => return Ok(None),
                    // What was read was not all: read again.
                    Next::Behind(_) => break None,
                }
                let has_lease = member
                    .tenancy
                    .change(|standing, _| standing.lease().is_some());
                if member.is_over() || !has_lease {
                    return Ok(None);
                }
                if !is_answered {
                    member.nap(PAUSE_SHORT);
                }
            };
            let Some(sent) = committed else {
                if member.is_over() || member.tenancy.role() != Role::Candidate {
                    return Ok(None);
                }
                member.nap(PAUSE_SHORT);
                continue;
            };
            position.seq += 1;
            position.epoch += 1;
            (position.leader, position.nonce) = (leader, nonce);
            member
                .tenancy
                .change(|standing, now| standing.leads(sent, now));
            return Ok(Some(Lead {
                tenancy: Arc::clone(&member.tenancy),
                appender,
                position: *position,
                nonce: options.nonce,
                batch_bytes: options.batch_bytes,
                figures: Arc::clone(&member.figures),
            }));
        }
    }

    /// What stands under the leader's key while we lead with this lease.
    fn name(&self, lease: u64) -> Vec<u8> {
        let options = &self.member.options;
        let key = LeaderKey {
            attempt: [options.nonce, lease],
            line: options.advertise.clone(),
            http: options.advertise_http.clone(),
        };
        key.encode()
    }

    /// Whoever leads writes over a connection of its own. It is opened while the lease and the key are being taken,
    /// so that the first answers do not wait for it.
    fn warm_up(&self, lease: u64) -> io::Result<()> {
        let member = Arc::clone(&self.member);
        let key = self.keys.leader();
        let warm_up = move || {
            let mut etcd = member.etcd_of_log();
            // The first one connects; with the second etcd's own leader is looked for. What is not done by then is
            // done with the first entry.
            for _ in 0..2 {
                let _ = etcd.call(&Ask::Range(Get::one(&key)), PATIENCE_FIRST);
            }
            member.keep_warm(lease, etcd);
        };
        self.member
            .place()
            .spawn("latchd-warm-up", Box::new(warm_up))
    }

    /// Puts our name under the leader's key; `None`: another one's name is there.
    ///
    /// If no answer comes the key may be ours all the same, and would stay so for as long as the lease is renewed. So it is
    /// looked at: to read is quick also where to write is not.
    fn take_key(
        &mut self,
        position: &Position,
        lease: u64,
        patience: &mut Duration,
    ) -> Result<Option<Taken>, Anew> {
        let member = Arc::clone(&self.member);
        let options = &member.options;
        let (key, map) = (self.keys.leader(), map_key(&options.cluster));
        let value = self.name(lease);
        let put = |key: Vec<u8>, lease| Op::Put {
            key,
            value: value.clone(),
            lease,
        };
        // The same where members of other shards look, and where it stays when the lease is over: whoever
        // makes another map sees that somebody has begun to lead.
        let take = Ask::Txn {
            compare: vec![
                Compare::Created(key.clone(), 0),
                Compare::Modified(map.clone(), self.map_revision),
            ],
            success: vec![
                put(key.clone(), lease),
                put(self.keys.listed(), lease),
                put(self.keys.term(), 0),
                Op::Get(Get::one(&self.keys.entry(position.seq))),
                Op::Get(next_page(&self.keys, position)),
            ],
            failure: vec![Op::Get(Get::one(&key)), Op::Get(Get::one(&map))],
        };
        let look = Ask::Range(Get::one(&key));
        let mut is_in_doubt = false;
        loop {
            let ask = if is_in_doubt { &look } else { &take };
            let answer = self.etcd.call(ask, *patience);
            if is_unanswered(&answer) {
                *patience = grown(*patience);
            }
            match answer {
                Ok(Answer::Txn {
                    succeeded: true,
                    revision,
                    got,
                }) => {
                    let read = got.try_into().ok();
                    let leader = revision;
                    return Ok(Some(Taken { leader, read }));
                }
                Ok(Answer::Txn { got, .. }) => {
                    let [there, map] = &got[..] else {
                        return Err(Trouble::Garbled("another answer".to_owned()).into());
                    };
                    let map_revision = map.kvs.first().map(|kv| kv.modified);
                    match there.kvs.first() {
                        // An earlier try, whose answer was lost.
                        Some(kv) if kv.value == value => return Ok(Some(Taken::found(kv))),
                        Some(_) => return Ok(None),
                        None if map_revision != Some(self.map_revision) => {
                            return Err(Anew::Remapped);
                        }
                        None => {}
                    }
                }
                Ok(Answer::Range { got, .. }) if is_in_doubt => match got.kvs.first() {
                    Some(kv) if kv.value == value => return Ok(Some(Taken::found(kv))),
                    Some(_) => return Ok(None),
                    // It may be on its way still: then the next one finds it.
                    None => is_in_doubt = false,
                },
                Ok(_) => return Err(Trouble::Garbled("another answer".to_owned()).into()),
                Err(trouble) if trouble.is_refusal() => return Err(trouble.into()),
                Err(trouble) if trouble.is_surely_undone() && !is_in_doubt => {
                    return Err(trouble.into());
                }
                Err(_) => is_in_doubt = true,
            }
            let has_lease = member
                .tenancy
                .change(|standing, _| standing.lease().is_some());
            if member.is_over() || !has_lease {
                return Ok(None);
            }
            member.nap(PAUSE_SHORT);
        }
    }
}
