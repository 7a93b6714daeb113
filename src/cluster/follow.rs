//! The thread of a standby: loads what etcd has, follows what comes, and takes over when nobody leads (`take_over.rs`).
//!
//! A watch tells of every entry at once. It may fall silent without ending, so etcd is asked besides, every
//! fifth of the time to live: who leads, and is there an entry that was not told? Records go to the
//! reactor's thread, where the lock table is (`replica.rs`); here it is only known how far they go.
//!
//! Before all this the map is read: how many shards the cluster has. A member that was started for another
//! number ends, and nobody leads unless the map is still the one that it has read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use log::{error, info, warn};

use super::leader_key::{LeaderKey, leader_for};
use super::member::Member;
use super::news::{News, hand_over};
use super::role::Role;
use super::take_over::{grown, is_unanswered};
use super::upkeep;
use crate::base::Nanos;
use crate::etcd::{Answer, Ask, Etcd, Event, Get, Got, Op, Trouble, Watched, Watching};
use crate::store::etcd::{
    Keys, Map, NotRead, Position, create, follow, load, map_key, read_on, read_or_create_map,
};

/// How long a page of the log may take.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// After something that went wrong.
const PAUSE: Duration = Duration::from_millis(200);

/// After a log that cannot be read, again and again: to read all of it costs those something who can.
const PAUSE_DAMAGED_MOST: Duration = Duration::from_secs(10);

/// After a question that was not answered.
pub(super) const PAUSE_SHORT: Duration = Duration::from_millis(20);

/// How often a standby looks how large etcd is.
const LOOK_EVERY_NS: u64 = 5_000_000_000;

/// What came of a look at etcd.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// There is no leader's key.
    nobody_leads: bool,
    /// There is more of the log than was told.
    is_behind: bool,
}

/// Why a standby begins anew.
pub(super) enum Anew {
    NotRead(NotRead),
    /// There is another map.
    Remapped,
    /// The reactor is gone.
    Over,
}

impl From<NotRead> for Anew {
    fn from(why: NotRead) -> Self {
        Self::NotRead(why)
    }
}

impl From<Trouble> for Anew {
    fn from(why: Trouble) -> Self {
        Self::NotRead(why.into())
    }
}

/// Follows, and takes over.
pub struct Follower {
    pub(super) member: Arc<Member>,
    news: SyncSender<News>,
    pub(super) etcd: Box<dyn Etcd + Send>,
    watch: Box<dyn Watching + Send>,
    /// The keys of this shard, by the map that was read last.
    pub(super) keys: Keys,
    /// The revision at which that map was put there.
    pub(super) map_revision: u64,
    /// That map is not the first one of its cluster.
    is_resharded: bool,
    /// What was complained of last.
    complaint: String,
    /// Since when it is known that there is more of the log than was told.
    known_since: Option<Nanos>,
    /// When it was last looked how large etcd is.
    looked: Option<Nanos>,
    /// The lease of a leader that has missed renewals; 0 is none. Clients are not sent there.
    late_lease: u64,
    /// How long it is waited for to be told who leads, the next time that it is asked.
    poll_within: Duration,
    /// How long a lease is waited for, the next time that one is asked for.
    pub(super) grant_within: Duration,
}

impl Follower {
    /// Begins to follow, on a thread of its own.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(member: &Arc<Member>, news: SyncSender<News>) -> io::Result<()> {
        let place = member.place();
        let first = member.options.nonce as usize % 64;
        let follower = Self {
            member: Arc::clone(member),
            news,
            etcd: place.etcd(first),
            watch: place.watch(first + 1),
            keys: Keys::new(&member.options.cluster, member.options.shard.index()),
            map_revision: 0,
            is_resharded: false,
            complaint: String::new(),
            known_since: None,
            looked: None,
            late_lease: 0,
            poll_within: member.ttl_part(5),
            grant_within: member.ttl_part(2),
        };
        place.spawn("latchd-follow", Box::new(move || follower.run()))
    }

    fn run(mut self) {
        let mut pause = PAUSE;
        while !self.member.is_over() {
            let lived = self.live();
            pause = match lived {
                Err(Anew::NotRead(NotRead::Damaged(_))) => (pause * 2).min(PAUSE_DAMAGED_MOST),
                _ => PAUSE,
            };
            match lived {
                Ok(()) => {}
                Err(Anew::Remapped) => warn!("cluster: the number of shards has changed"),
                Err(Anew::Over) => return,
                Err(Anew::NotRead(why)) => self.complain(&why),
            }
            self.member.nap(pause);
        }
    }

    fn complain(&mut self, why: &NotRead) {
        let text = why.to_string();
        if text != self.complaint {
            match why {
                NotRead::Damaged(_) => error!("cluster: {text}; this member does not lead"),
                NotRead::Gone(_) => info!("cluster: {text}; everything is loaded anew"),
                NotRead::Trouble(_) => warn!("cluster: {text}"),
            }
            self.complaint = text;
        }
    }

    /// From loading everything to the next time that is necessary.
    fn live(&mut self) -> Result<(), Anew> {
        self.read_map()?;
        let keys = self.keys.clone();
        self.known_since = None;
        let mut position = loop {
            self.tell(News::Reset)?;
            let (member, news) = (&self.member, &self.news);
            let mut is_gone = false;
            let loaded = load(&mut *self.etcd, &keys, PAGE_WITHIN, &mut |bytes| {
                is_gone |= hand_over(member, news, bytes).is_err();
            })?;
            if is_gone {
                return Err(Anew::Over);
            }
            match loaded {
                Some(position) => break position,
                // Whoever made this map has written a snapshot for every shard: if it is gone, so is what was held.
                None if self.is_resharded => {
                    let why = "the log of this shard is gone, although there was one: restore etcd";
                    return Err(NotRead::Damaged(why.to_owned()).into());
                }
                None => create(&mut *self.etcd, &keys, PAGE_WITHIN)?,
            }
        };
        self.tell(News::Loaded)?;
        self.note(&position);
        info!(
            "cluster: follows the log from entry {} on, epoch {}",
            position.seq, position.epoch
        );
        self.complaint.clear();
        self.tell_idle_login();
        self.watch.end();
        let mut polled = None;
        let mut has_heard = false;
        loop {
            if self.member.is_over() {
                return Ok(());
            }
            let now = self.member.tenancy.now();
            let every = self.member.ttl_part(5);
            let since = polled.map(|then| Duration::from_nanos(now.since(then)));
            let left = since.map_or(Duration::ZERO, |since| every.saturating_sub(since));
            let step = if left.is_zero() {
                // A watch that did not tell of anything while there was something is silent for ever.
                let is_silent = !std::mem::take(&mut has_heard);
                let seen = self.poll(&mut position, is_silent);
                self.look(now);
                if is_silent && matches!(&seen, Ok(seen) if seen.is_behind) {
                    self.watch.end();
                }
                // Where this takes long the watch is listened to in between.
                polled = Some(self.member.tenancy.now());
                seen
            } else if self.watch.is_begun() {
                match self.watch.next(left) {
                    Ok(Watched::Nothing) => Ok(Seen::default()),
                    Ok(Watched::Changed(events)) => {
                        has_heard = true;
                        self.hear(&mut position, &events)
                    }
                    Err(why) => Err(why.into()),
                }
            } else {
                self.begin_watch(position.revision + 1)
            };
            let step = match step {
                // etcd has forgotten what the watch was to tell. Entries are still there, unless they were trimmed.
                Err(Anew::NotRead(why)) if why.is_compacted() => {
                    self.watch.end();
                    self.poll(&mut position, true)
                }
                step => step,
            };
            let leads = match step {
                Ok(seen) if seen.nobody_leads => self.stand(&mut position),
                Ok(_) => Ok(false),
                Err(why) => Err(why),
            };
            match leads {
                Ok(true) => {
                    let keys = self.keys.clone();
                    upkeep::attend(&self.member, &mut *self.etcd, &keys, position.leader);
                    return self.await_reload();
                }
                Ok(false) => {}
                // etcd is away for a while, as in an election of its own. What we have is not worse for it.
                Err(Anew::NotRead(why @ NotRead::Trouble(_))) => {
                    self.complain(&why);
                    self.member.nap(PAUSE_SHORT);
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// How many shards there are, and so where this one is.
    fn read_map(&mut self) -> Result<(), Anew> {
        let member = Arc::clone(&self.member);
        let options = &member.options;
        let (cluster, shard) = (&options.cluster, options.shard);
        let mapped = read_or_create_map(
            &mut *self.etcd,
            cluster,
            shard.count(),
            options.nonce,
            PAGE_WITHIN,
        )?;
        let Map { shards, .. } = mapped.map;
        if shards != shard.count() {
            let why = format!(
                "cluster {cluster} has {shards} shards, and this member was started with --shard {shard}; \
                 only `latchd --reshard` changes their number"
            );
            self.tell(News::Unfit(why))?;
            return Err(Anew::Over);
        }
        let keys = mapped.map.keys(cluster);
        self.keys = keys.shard(shard.index());
        self.map_revision = mapped.revision;
        self.is_resharded = mapped.map.epoch > 1;
        member.set_map(&keys);
        Ok(())
    }

    /// Waits until the reactor's thread has dropped what this member had as a leader.
    fn await_reload(&mut self) -> Result<(), Anew> {
        while self.member.tenancy.role() != Role::Standby {
            if self.member.is_over() {
                return Err(Anew::Over);
            }
            self.member.nap(Duration::from_millis(50));
        }
        Ok(())
    }

    fn begin_watch(&mut self, from_revision: u64) -> Result<Seen, Anew> {
        let keys = &self.keys;
        let (first, end) = (keys.leader(), keys.entries_end());
        let within = self.member.ttl_part(2);
        self.watch.begin(&first, &end, from_revision, within)?;
        Ok(Seen::default())
    }

    /// Who leads, and is there more of the log than was told? If so it is read, if `reads` is set.
    fn poll(&mut self, position: &mut Position, reads: bool) -> Result<Seen, Anew> {
        let keys = self.keys.clone();
        let next = Get {
            key: keys.entry(position.seq + 1),
            end: keys.entries_end(),
            limit: 1,
            revision: 0,
        };
        let ask = Ask::Txn {
            compare: Vec::new(),
            success: vec![
                Op::Get(Get::one(&keys.leader())),
                Op::Get(Get::one(&keys.entry(position.seq))),
                Op::Get(next),
                Op::Get(Get::one(&map_key(&self.member.options.cluster))),
            ],
            failure: Vec::new(),
        };
        let answer = self.etcd.call(&ask, self.poll_within);
        self.poll_within = match is_unanswered(&answer) {
            true => grown(self.poll_within),
            false => self.member.ttl_part(5),
        };
        let Answer::Txn { revision, got, .. } = answer? else {
            return Err(Trouble::Garbled("an answer to another question".to_owned()).into());
        };
        let [leader, here, next, map] = &got[..] else {
            return Err(Trouble::Garbled("an answer to another question".to_owned()).into());
        };
        if map.kvs.first().map(|kv| kv.modified) != Some(self.map_revision) {
            return Err(Anew::Remapped);
        }
        position.is_here(here.kvs.first())?;
        let leader_value = leader.kvs.first().map(|kv| &kv.value[..]);
        self.note_leader(leader_value);
        if let Some(key) = leader_value.and_then(LeaderKey::decode) {
            self.look_at_lease(key.attempt[1]);
            self.note_leader(leader_value);
        }
        self.member
            .figures
            .lag_entries
            .store(next.count, Ordering::Relaxed);
        let is_behind = next.count > 0;
        let nobody_leads = leader.kvs.is_empty();
        if is_behind {
            let now = self.member.tenancy.now();
            self.known_since.get_or_insert(now);
            self.member.figures.note_behind(now);
        }
        if is_behind && reads {
            self.read_on(position)?;
            self.tell_known()?;
        }
        // Not the revision up to which it was read: whoever leads was looked up at this one.
        if !is_behind || reads {
            position.revision = position.revision.max(revision);
        }
        Ok(Seen {
            nobody_leads,
            is_behind,
        })
    }

    pub(super) fn read_on(&mut self, position: &mut Position) -> Result<(), Anew> {
        let keys = self.keys.clone();
        let (member, news) = (&self.member, &self.news);
        let mut is_gone = false;
        let read = read_on(
            &mut *self.etcd,
            &keys,
            position,
            PAGE_WITHIN,
            &mut |bytes| {
                is_gone |= hand_over(member, news, bytes).is_err();
            },
        );
        if matches!(read, Err(NotRead::Damaged(_))) {
            self.look_here(position)?; // it may have been trimmed since it was looked at last
        }
        read?;
        self.note(position);
        match is_gone {
            true => Err(Anew::Over),
            false => Ok(()),
        }
    }

    /// What was read of the log besides.
    pub(super) fn take_page(&mut self, position: &mut Position, page: &Got) -> Result<(), Anew> {
        let (member, news) = (&self.member, &self.news);
        let mut is_gone = false;
        for kv in &page.kvs {
            follow(&self.keys, position, kv, &mut |bytes| {
                is_gone |= hand_over(member, news, bytes).is_err();
            })?;
        }
        self.note(position);
        match is_gone {
            true => Err(Anew::Over),
            false => Ok(()),
        }
    }

    /// Makes sure that what we have replayed is what etcd has, as far as it goes.
    pub(super) fn look_here(&mut self, position: &Position) -> Result<(), Anew> {
        let get = Get::one(&self.keys.entry(position.seq));
        match self.etcd.call(&Ask::Range(get), PAGE_WITHIN)? {
            Answer::Range { got, .. } => position.is_here(got.kvs.first()).map_err(Anew::from),
            _ => Err(Trouble::Garbled("an answer to another question".to_owned()).into()),
        }
    }

    /// What the watch told.
    fn hear(&mut self, position: &mut Position, events: &[Event]) -> Result<Seen, Anew> {
        let keys = self.keys.clone();
        let before = position.seq;
        let heard = self.member.tenancy.now();
        let mut nobody_leads = false;
        for event in events {
            match event {
                Event::Put(kv) if kv.key == keys.leader() => {
                    nobody_leads = false;
                    self.note_leader(Some(&kv.value));
                }
                Event::Delete(kv) if kv.key == keys.leader() => {
                    nobody_leads = true;
                    self.note_leader(None);
                }
                // What a poll has read already is told again.
                Event::Put(kv) if keys.seq_of(&kv.key).is_some_and(|seq| seq > position.seq) => {
                    let (member, news) = (&self.member, &self.news);
                    let mut is_gone = false;
                    follow(&keys, position, kv, &mut |bytes| {
                        is_gone |= hand_over(member, news, bytes).is_err();
                    })?;
                    if is_gone {
                        return Err(Anew::Over);
                    }
                    position.revision = position.revision.max(kv.modified);
                }
                Event::Put(_) | Event::Delete(_) => {}
            }
        }
        self.note(position);
        if position.seq != before {
            self.known_since.get_or_insert(heard);
            self.tell_known()?;
        }
        Ok(Seen {
            nobody_leads,
            is_behind: false,
        })
    }

    /// Notes whether the leader has missed renewals: it is gone, or silent in a moment, long before its key is
    /// deleted.
    fn look_at_lease(&mut self, lease: u64) {
        let asked = self
            .etcd
            .call(&Ask::TimeToLive { lease }, self.member.ttl_part(5));
        if let Ok(Answer::TimeToLive { left_s, granted_s }) = asked {
            self.late_lease = match is_late(left_s, granted_s) {
                true => lease,
                false => 0,
            };
        }
    }

    /// What was handed over is all that was known: how old it is when it is replayed is the lag.
    fn tell_known(&mut self) -> Result<(), Anew> {
        let now = self.member.tenancy.now();
        let since = self.known_since.take().unwrap_or(now);
        self.member.figures.note_heard(since);
        self.tell(News::Known(since))
    }

    /// Looks now and then how large etcd is, so that every member can show it.
    fn look(&mut self, now: Nanos) {
        let is_due = self.looked.is_none_or(|it| now.since(it) >= LOOK_EVERY_NS);
        if is_due {
            self.looked = Some(now);
            let within = self.member.ttl_part(10);
            // If this fails the next poll says why.
            let _ = upkeep::look(&self.member, &mut *self.etcd, within);
        }
    }

    /// Whoever gave a password believes that etcd asks for one.
    fn tell_idle_login(&self) {
        if self.member.place().is_login_idle() {
            warn!(
                "etcd asks for no password, so whoever reaches it can grant anything; etcdctl auth \
                 enable makes it ask"
            );
        }
    }

    pub(super) fn note(&self, position: &Position) {
        let figures = &self.member.figures;
        figures.seq.store(position.seq, Ordering::Relaxed);
        figures.epoch.store(position.epoch, Ordering::Relaxed);
    }

    fn note_leader(&self, value: Option<&[u8]>) {
        let leader = value.and_then(LeaderKey::decode);
        let is_other = |it: &LeaderKey| it.attempt[0] != self.member.options.nonce;
        if leader.as_ref().is_some_and(is_other) {
            self.member.end_rest();
        }
        let own = self.member.options.redirect();
        let leader = leader.filter(|it| it.attempt[1] != self.late_lease);
        let leader = leader_for(&own, leader.as_ref());
        self.member.set_leader(leader);
    }

    pub(super) fn tell(&self, news: News) -> Result<(), Anew> {
        self.news.send(news).map_err(|_| Anew::Over)?;
        self.member.tenancy.wake();
        Ok(())
    }
}

/// Whether a leader has missed renewals, by the whole seconds that etcd says are left of its lease. It renews every
/// fifth of the lease, so with less than half left two are missing. Nothing is known of a lease that is over: the
/// key can outlast it for a moment.
pub(super) fn is_late(left_s: u64, granted_s: u64) -> bool {
    granted_s == 0 || left_s * 2 < granted_s
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
