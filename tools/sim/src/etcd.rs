//! An etcd in memory, for tests and the simulator: what transactions, leases and revisions do, exactly, and
//! nothing else. Time is an argument; what is lost, late or out of order is up to whoever asks.

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos};
use latchd::etcd::{Answer, Ask, Compare, Event, Get, Got, Kv, Op, Trouble};

/// One version of a key; no value means that it was deleted.
#[derive(Clone, Debug)]
struct Version {
    modified: u64,
    created: u64,
    lease: u64,
    value: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Millis,
    ends: Nanos,
}

/// An etcd in memory.
#[derive(Clone, Debug)]
pub struct Model {
    revision: u64,
    compacted: u64,
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
    leases: BTreeMap<u64, Lease>,
    last_lease: u64,
    /// Whether nothing may grow.
    pub is_full: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
            is_full: false,
        }
    }
}

impl Model {
    /// Answers at this instant.
    ///
    /// # Errors
    /// As etcd does; never one that leaves open what has happened.
    pub fn apply(&mut self, now: Nanos, ask: &Ask) -> Result<Answer, Trouble> {
        self.expire(now);
        match ask {
            Ask::Txn {
                compare,
                success,
                failure,
            } => self.transact(compare, success, failure),
            Ask::Range(get) => Ok(Answer::Range {
                revision: self.revision,
                got: self.get(get)?,
            }),
            Ask::Grant { .. } if self.is_full => Err(Trouble::NoSpace("full".to_owned())),
            Ask::Grant { ttl_s } => {
                self.last_lease += 1;
                let ttl = Millis::from_secs(*ttl_s);
                let ends = now.after(ttl);
                self.leases.insert(self.last_lease, Lease { ttl, ends });
                Ok(Answer::Granted {
                    lease: self.last_lease,
                    ttl_s: *ttl_s,
                })
            }
            Ask::KeepAlive { lease } => {
                let lease = self.leases.get_mut(lease);
                let kept = lease.map_or(Millis::ZERO, |it| {
                    it.ends = now.after(it.ttl);
                    it.ttl
                });
                Ok(Answer::KeptAlive {
                    ttl_s: kept.0 / 1_000,
                })
            }
            Ask::TimeToLive { lease } => {
                let lease = self.leases.get(lease);
                Ok(Answer::TimeToLive {
                    left_s: lease.map_or(0, |it| it.ends.since(now) / 1_000_000_000),
                    granted_s: lease.map_or(0, |it| it.ttl.0 / 1_000),
                })
            }
            Ask::Revoke { lease } => {
                if self.leases.remove(lease).is_none() {
                    return Err(Trouble::NoLease);
                }
                self.end_lease(*lease);
                Ok(Answer::Done)
            }
            Ask::Compact { revision } => {
                if *revision <= self.compacted || *revision > self.revision {
                    return Err(Trouble::Compacted);
                }
                self.compacted = *revision;
                self.forget();
                Ok(Answer::Done)
            }
            Ask::Status => {
                let values = self.keys.values().flatten();
                let bytes = values.filter_map(|it| it.value.as_ref().map(Vec::len));
                let bytes = bytes.sum::<usize>() as u64;
                Ok(Answer::Status {
                    bytes,
                    bytes_in_use: bytes,
                })
            }
        }
    }

    /// Ends the leases that are over, as etcd does by itself.
    pub fn expire(&mut self, now: Nanos) {
        while let Some((&lease, _)) = self.leases.iter().find(|(_, it)| it.ends <= now) {
            self.leases.remove(&lease);
            self.end_lease(lease);
        }
    }

    /// When the next lease is over, if there is one.
    #[must_use]
    pub fn next_end(&self) -> Option<Nanos> {
        self.leases.values().map(|it| it.ends).min()
    }

    /// Drops the versions of keys that nobody can ask for any more.
    fn forget(&mut self) {
        let compacted = self.compacted;
        self.keys.retain(|_, versions| {
            let old = versions.partition_point(|it| it.modified <= compacted);
            // The last of the old ones is what the key was at that revision; a deleted key was nothing.
            let kept = old.saturating_sub(1);
            versions.drain(..kept);
            let is_nothing = |it: &Version| it.modified <= compacted && it.value.is_none();
            if versions.first().is_some_and(is_nothing) {
                versions.remove(0);
            }
            !versions.is_empty()
        });
    }

    /// An election of etcd's own: every lease begins anew.
    pub fn restart_leases(&mut self, now: Nanos) {
        for lease in self.leases.values_mut() {
            lease.ends = now.after(lease.ttl);
        }
    }

    /// What a key holds now.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<Kv> {
        self.kv(key, self.revision)
    }

    /// Everything that has changed from this revision on in the range, in order.
    ///
    /// # Errors
    /// Some of it is forgotten.
    pub fn changed(&self, from: u64, key: &[u8], end: &[u8]) -> Result<Vec<Event>, Trouble> {
        if from < self.compacted {
            return Err(Trouble::Compacted);
        }
        let mut events = Vec::new();
        for (name, versions) in self.keys.range(key.to_vec()..end.to_vec()) {
            for version in versions.iter().filter(|it| it.modified >= from) {
                let kv = Kv {
                    key: name.clone(),
                    value: version.value.clone().unwrap_or_default(),
                    created: version.created,
                    modified: version.modified,
                };
                events.push((
                    version.modified,
                    match version.value {
                        Some(_) => Event::Put(kv),
                        None => Event::Delete(kv),
                    },
                ));
            }
        }
        events.sort_by_key(|(revision, _)| *revision);
        Ok(events.into_iter().map(|(_, event)| event).collect())
    }

    /// The revision now.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn transact(
        &mut self,
        compare: &[Compare],
        success: &[Op],
        failure: &[Op],
    ) -> Result<Answer, Trouble> {
        let succeeded = compare.iter().all(|it| self.holds(it));
        let ops = if succeeded { success } else { failure };
        if self.is_full && ops.iter().any(|op| matches!(op, Op::Put { .. })) {
            return Err(Trouble::NoSpace("full".to_owned()));
        }
        let leases = ops.iter().filter_map(|op| match op {
            Op::Put { lease, .. } if *lease != 0 => Some(lease),
            _ => None,
        });
        if !leases.clone().all(|lease| self.leases.contains_key(lease)) {
            return Err(Trouble::NoLease);
        }
        let revision = self.revision + 1;
        let mut got = Vec::new();
        let mut changes = false;
        for op in ops {
            match op {
                Op::Get(get) => got.push(self.get(get)?),
                Op::Put { key, value, lease } => {
                    changes = true;
                    let created = self.kv(key, revision).map_or(revision, |it| it.created);
                    self.set(key, revision, created, *lease, Some(value.clone()));
                }
                Op::Delete(key, end) => {
                    for name in self.names(key, end, revision) {
                        changes = true;
                        self.set(&name, revision, 0, 0, None);
                    }
                }
            }
        }
        if changes {
            self.revision = revision;
        }
        Ok(Answer::Txn {
            revision: self.revision,
            succeeded,
            got,
        })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let created = |key: &[u8]| self.value(key).map_or(0, |it| it.created);
        match compare {
            Compare::Created(key, revision) => created(key) == *revision,
            Compare::Exists(key) => created(key) > 0,
            Compare::Value(key, value) => self.value(key).is_some_and(|it| it.value == *value),
            Compare::Modified(key, revision) => {
                self.value(key).map_or(0, |it| it.modified) == *revision
            }
            Compare::NoneSince(key, end, revision) => {
                let names = self.names(key, end, self.revision);
                let mut there = names.iter().filter_map(|name| self.value(name));
                there.all(|it| it.modified <= *revision)
            }
        }
    }

    fn get(&self, get: &Get) -> Result<Got, Trouble> {
        let revision = match get.revision {
            0 => u64::MAX,
            revision if revision < self.compacted => return Err(Trouble::Compacted),
            revision if revision > self.revision => {
                let why = "etcdserver: mvcc: required revision is a future revision";
                return Err(Trouble::Unanswered(why.to_owned()));
            }
            revision => revision,
        };
        let names = self.names(&get.key, &get.end, revision);
        let limit = match get.limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let kvs = names.iter().take(limit);
        Ok(Got {
            kvs: kvs.filter_map(|name| self.kv(name, revision)).collect(),
            more: names.len() > limit,
            count: names.len() as u64,
        })
    }

    /// The keys of the range that were there at this revision.
    fn names(&self, key: &[u8], end: &[u8], revision: u64) -> Vec<Vec<u8>> {
        let is_there = |name: &[u8]| self.kv(name, revision).is_some();
        if end.is_empty() {
            return Some(key.to_vec())
                .filter(|key| is_there(key))
                .into_iter()
                .collect();
        }
        let range = self.keys.range(key.to_vec()..end.to_vec());
        let names = range.map(|(name, _)| name.clone());
        names.filter(|name| is_there(name)).collect()
    }

    fn kv(&self, key: &[u8], revision: u64) -> Option<Kv> {
        let versions = self.keys.get(key)?;
        let last = versions.iter().rev().find(|it| it.modified <= revision)?;
        Some(Kv {
            key: key.to_vec(),
            value: last.value.clone()?,
            created: last.created,
            modified: last.modified,
        })
    }

    fn set(&mut self, key: &[u8], modified: u64, created: u64, lease: u64, value: Option<Vec<u8>>) {
        let versions = self.keys.entry(key.to_vec()).or_default();
        versions.retain(|it| it.modified != modified); // twice in one transaction
        versions.push(Version {
            modified,
            created,
            lease,
            value,
        });
    }

    fn end_lease(&mut self, lease: u64) {
        let is_its = |versions: &Vec<Version>| {
            let last = versions.last();
            last.is_some_and(|it| it.lease == lease && it.value.is_some())
        };
        let its = self.keys.iter().filter(|(_, versions)| is_its(versions));
        let names: Vec<Vec<u8>> = its.map(|(name, _)| name.clone()).collect();
        if !names.is_empty() {
            self.revision += 1;
        }
        for name in names {
            self.set(&name, self.revision, 0, 0, None);
        }
    }
}
