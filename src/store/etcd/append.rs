//! How an entry gets into the log: one guarded transaction at a time, until it is known what became of it.
//!
//! A pure state machine: it says what to ask, and is told the answer or that there is none. Nothing is
//! sent ahead of an answer, because etcd may do in another order what is under way together.
//!
//! The guards: the leader's key is still the one that was created with us, this entry is not there, and
//! the one before it is. With the last one, an entry that arrives late can neither leave a hole nor come
//! back after the log behind it was trimmed.

use super::keys::Keys;
use super::value::Logged;
use crate::etcd::{Answer, Ask, Compare, Get, Op, Trouble};

/// Puts entries into the log, one after the other.
#[derive(Clone, Debug)]
pub struct Appender {
    keys: Keys,
    /// The revision at which our leader's key was created.
    leader: u64,
    /// The number of the entry that is under way, or comes next.
    seq: u64,
    sent: Option<Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    nonce: [u64; 2],
    value: Vec<u8>,
    /// It is being looked for, and not being written.
    is_look: bool,
}

/// What to do next about an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this, at once or after a while, and tell the answer.
    Ask(Ask),
    /// It is in the log, and nothing can take it out again.
    Committed {
        /// The answer to this very question says that we led when it was answered, and not only at some
        /// time before.
        proves: bool,
    },
    /// It is not in the log as far as we know, and will never be: we lead no longer.
    Fenced,
    /// Nothing was written for want of space: ask the same again later.
    Full(Ask),
    /// We lead, and yet something else stands where the entry belongs, or nothing before it. A candidate
    /// reads the log again; a leader must end at once.
    Behind(String),
}

impl Appender {
    /// Goes on behind this entry of the log, for the leader whose key was created at this revision.
    #[must_use]
    pub fn new(keys: Keys, leader: u64, last: u64) -> Self {
        Self {
            keys,
            leader,
            seq: last + 1,
            sent: None,
        }
    }

    /// The entry that is under way, or comes next.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Begins with the next entry. The one before must be committed.
    ///
    /// # Panics
    /// If it is not: that would be a second one under way.
    pub fn begin(&mut self, logged: &Logged) -> Ask {
        assert!(self.sent.is_none(), "two entries under way");
        self.sent = Some(Sent {
            nonce: logged.nonce,
            value: logged.encode(),
            is_look: false,
        });
        self.write()
    }

    /// Has etcd say whether we lead, and changes nothing: a full etcd does this, too.
    #[must_use]
    pub fn proof(&self) -> Ask {
        Ask::Txn {
            compare: self.keys.guards(self.leader),
            success: vec![Op::Get(Get::one(&self.keys.leader()))],
            failure: Vec::new(),
        }
    }

    /// What came of what was asked.
    pub fn answered(&mut self, answer: Result<Answer, Trouble>) -> Next {
        let Some(sent) = &mut self.sent else {
            return Next::Behind("an answer to nothing".to_owned());
        };
        let is_look = sent.is_look;
        match answer {
            Ok(Answer::Txn {
                succeeded: true, ..
            }) if !is_look => self.committed(true),
            Ok(Answer::Txn { got, .. }) => match &got[..] {
                [leader, entry] => {
                    let leader = self.keys.leads_since(leader.kvs.first());
                    let entry = entry.kvs.first().map(|kv| kv.value.clone());
                    self.looked(leader, entry, is_look)
                }
                _ => Next::Behind("an answer to another question".to_owned()),
            },
            Ok(_) => Next::Behind("an answer to another question".to_owned()),
            Err(Trouble::NoSpace(_)) if !is_look => Next::Full(self.write()),
            // Nobody has seen it, so it can be sent again; but an earlier one may be under way still, so
            // look first all the same.
            Err(_) => {
                sent.is_look = true;
                Next::Ask(self.look())
            }
        }
    }

    /// It is known what there is: who leads, and what stands where the entry belongs.
    fn looked(&mut self, leader: u64, entry: Option<Vec<u8>>, is_look: bool) -> Next {
        let Some(sent) = &mut self.sent else {
            return Next::Behind("an answer to nothing".to_owned());
        };
        let is_ours = entry.as_ref().is_some_and(|value| {
            let it = Logged::decode(value);
            it.is_ok_and(|it| it.nonce == sent.nonce && it.leader == self.leader)
        });
        if is_ours {
            return self.committed(false);
        }
        if leader != self.leader {
            return Next::Fenced;
        }
        if entry.is_some() {
            return Next::Behind(format!("another entry stands at {}", self.seq));
        }
        if !is_look {
            return Next::Behind(format!("there is no entry before {}", self.seq));
        }
        sent.is_look = false;
        Next::Ask(self.write())
    }

    fn committed(&mut self, proves: bool) -> Next {
        self.sent = None;
        self.seq += 1;
        Next::Committed { proves }
    }

    fn write(&self) -> Ask {
        let value = self.sent.as_ref().map(|it| it.value.clone());
        Ask::Txn {
            compare: {
                let mut guards = self.keys.guards(self.leader);
                guards.push(Compare::Created(self.keys.entry(self.seq), 0));
                guards.push(Compare::Exists(self.keys.entry(self.seq - 1)));
                guards
            },
            success: vec![Op::Put {
                key: self.keys.entry(self.seq),
                value: value.unwrap_or_default(),
                lease: 0,
            }],
            failure: self.both(),
        }
    }

    /// One transaction, so that leader and entry are seen at one time; and it is read where everything is
    /// that was written before.
    fn look(&self) -> Ask {
        Ask::Txn {
            compare: Vec::new(),
            success: self.both(),
            failure: Vec::new(),
        }
    }

    fn both(&self) -> Vec<Op> {
        vec![
            Op::Get(Get::one(&self.keys.leader())),
            Op::Get(Get::one(&self.keys.entry(self.seq))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::etcd::Model;

    const DONE: Next = Next::Committed { proves: true };
    const FOUND: Next = Next::Committed { proves: false };

    fn put(key: Vec<u8>, value: Vec<u8>) -> Ask {
        Ask::Txn {
            compare: Vec::new(),
            success: vec![Op::Put {
                key,
                value,
                lease: 0,
            }],
            failure: Vec::new(),
        }
    }

    fn logged(leader: u64, nonce: u64) -> Logged {
        Logged {
            leader,
            nonce: [nonce, 0],
            epoch: 1,
            first: 1,
            frames: Vec::new(),
        }
    }

    struct World {
        etcd: Model,
        keys: Keys,
    }

    impl World {
        /// A log with one entry, and a leader.
        fn new() -> (Self, Appender) {
            let mut it = Self {
                etcd: Model::default(),
                keys: Keys::new("test", 0),
            };
            let _ = it.ask(&put(it.keys.entry(0), logged(0, 0).encode()));
            let leader = it.elect();
            let appender = Appender::new(it.keys.clone(), leader, 0);
            (it, appender)
        }

        fn ask(&mut self, ask: &Ask) -> Result<Answer, Trouble> {
            self.etcd.apply(Nanos(0), ask)
        }

        /// Another one leads.
        fn elect(&mut self) -> u64 {
            let gone = Op::Delete(self.keys.leader(), Vec::new());
            let _ = self.ask(&Ask::Txn {
                compare: Vec::new(),
                success: vec![gone],
                failure: Vec::new(),
            });
            let _ = self.ask(&put(self.keys.leader(), b"x".to_vec()));
            self.etcd.value(&self.keys.leader()).unwrap().created
        }
    }

    fn lost() -> Result<Answer, Trouble> {
        Err(Trouble::Unanswered("lost".to_owned()))
    }

    fn asks(next: Next) -> Ask {
        match next {
            Next::Ask(ask) => ask,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn entries_follow_each_other() {
        let (mut world, mut appender) = World::new();
        for nonce in 1..4 {
            let ask = appender.begin(&logged(appender.leader, nonce));
            let answer = world.ask(&ask);
            assert_eq!(appender.answered(answer), DONE);
        }
        assert_eq!(appender.seq(), 4);
        assert!(world.etcd.value(&world.keys.entry(3)).is_some());
    }

    #[test]
    fn a_lost_answer_is_looked_for_before_anything_is_sent_again() {
        for was_done in [true, false] {
            let (mut world, mut appender) = World::new();
            let ask = appender.begin(&logged(appender.leader, 1));
            if was_done {
                let _ = world.ask(&ask);
            }
            let look = asks(appender.answered(lost()));
            let seen = world.ask(&look);
            let next = appender.answered(seen);
            if was_done {
                assert_eq!(next, FOUND);
            } else {
                let again = asks(next);
                assert_eq!(again, ask);
                // The first one arrives after all, and then the second: once is enough.
                let _ = world.ask(&ask);
                let refused = world.ask(&again);
                assert_eq!(appender.answered(refused), FOUND);
            }
            assert_eq!(appender.seq(), 2);
        }
    }

    #[test]
    fn what_a_fenced_leader_sends_changes_nothing() {
        let (mut world, mut appender) = World::new();
        let ask = appender.begin(&logged(appender.leader, 1));
        world.elect();
        let answer = world.ask(&ask);
        assert_eq!(appender.answered(answer), Next::Fenced);
        assert!(world.etcd.value(&world.keys.entry(1)).is_none());
    }

    #[test]
    fn an_entry_that_was_done_before_the_end_counts_although_another_leads() {
        let (mut world, mut appender) = World::new();
        let ask = appender.begin(&logged(appender.leader, 1));
        let _ = world.ask(&ask);
        world.elect();
        let look = asks(appender.answered(lost()));
        let seen = world.ask(&look);
        assert_eq!(appender.answered(seen), FOUND);
        let ask = appender.begin(&logged(appender.leader, 2));
        let refused = world.ask(&ask);
        assert_eq!(appender.answered(refused), Next::Fenced);
    }

    /// As after a restored backup, with which etcd's revisions begin anew.
    #[test]
    fn whoever_has_the_same_revision_and_another_name_is_fenced() {
        let (mut world, appender) = World::new();
        let append = |world: &mut World, name: &[u8]| {
            let keys = world.keys.clone().led_as(name.to_vec());
            let mut appender = Appender::new(keys, appender.leader, 0);
            let ask = appender.begin(&logged(appender.leader, 1));
            let answer = world.ask(&ask);
            let next = appender.answered(answer);
            (next, world.etcd.value(&world.keys.entry(1)).is_some())
        };
        assert_eq!(append(&mut world, b"y"), (Next::Fenced, false));
        assert_eq!(append(&mut world, b"x"), (DONE, true));
    }

    #[test]
    fn a_hole_or_a_stranger_in_the_log_is_noticed() {
        let (mut world, _) = World::new();
        let leader = world.etcd.value(&world.keys.leader()).unwrap().created;
        let mut ahead = Appender::new(world.keys.clone(), leader, 5);
        let ask = ahead.begin(&logged(leader, 1));
        let refused = world.ask(&ask);
        assert!(matches!(ahead.answered(refused), Next::Behind(_)));
        let _ = world.ask(&put(world.keys.entry(1), logged(leader, 9).encode()));
        let mut stale = Appender::new(world.keys.clone(), leader, 0);
        let ask = stale.begin(&logged(leader, 1));
        let refused = world.ask(&ask);
        assert!(matches!(stale.answered(refused), Next::Behind(_)));
    }

    #[test]
    fn a_late_entry_does_not_come_back_when_the_log_was_trimmed() {
        let (mut world, mut appender) = World::new();
        let late = appender.begin(&logged(appender.leader, 1));
        let look = asks(appender.answered(lost()));
        let seen = world.ask(&look);
        let again = asks(appender.answered(seen));
        let answer = world.ask(&again);
        assert_eq!(appender.answered(answer), DONE);
        for nonce in 2..5 {
            let ask = appender.begin(&logged(appender.leader, nonce));
            let answer = world.ask(&ask);
            assert_eq!(appender.answered(answer), DONE);
        }
        let _ = world.ask(&Ask::Txn {
            compare: Vec::new(),
            success: vec![Op::Delete(world.keys.entry(0), world.keys.entry(3))],
            failure: Vec::new(),
        });
        let _ = world.ask(&late);
        assert!(world.etcd.value(&world.keys.entry(1)).is_none());
    }

    #[test]
    fn without_space_it_is_tried_again_and_nothing_is_lost() {
        let (mut world, mut appender) = World::new();
        world.etcd.is_full = true;
        let ask = appender.begin(&logged(appender.leader, 1));
        let full = world.ask(&ask);
        let Next::Full(again) = appender.answered(full) else {
            panic!("not full");
        };
        world.etcd.is_full = false;
        let answer = world.ask(&again);
        assert_eq!(appender.answered(answer), DONE);
    }
}
