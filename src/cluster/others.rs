//! The thread that knows who leads the other shards, so that clients can be sent there.
//!
//! It asks for all of them at once, with one question, every fifth of the time to live and at least
//! once a second, whatever this member does meanwhile. Then it asks for their leases. The answers
//! only tell clients where to ask: a member that does not lead says so itself. There is no such
//! thread if there is one shard.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::follow::is_late;
use super::leader_key::LeaderKey;
use super::member::Member;
use crate::etcd::{Answer, Ask, Etcd, Get, Trouble};
use crate::store::Redirect;
use crate::store::etcd::MapKeys;

/// The longest time between two looks.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// Most leases asked for with one look, because etcd tells of one at a time. Leaders of more shards
/// take turns.
const LEASES_MAX: usize = 8;

/// Begins to look, if there are others.
///
/// # Errors
/// When there can be no thread.
pub fn look_at_others(member: &Arc<Member>) -> io::Result<()> {
    if member.options.shard.is_whole() {
        return Ok(());
    }
    let first = member.options.nonce as usize % 64;
    let mut etcd = member.place().etcd(first + 2);
    let looker = Arc::clone(member);
    let look = move || run(&looker, &mut *etcd);
    member.place().spawn("latchd-shards", Box::new(look))
}

fn run(member: &Member, etcd: &mut dyn Etcd) {
    let every = member.ttl_part(5).min(LOOK_EVERY_MAX);
    let mut late = Late::default();
    while !member.is_over() {
        if let Some(keys) = member.map_keys() {
            let count = member.options.shard.count();
            // Without an answer what was known before is better than nothing.
            if let Ok(leaders) = leaders(etcd, &keys, count, member.ttl_part(2)) {
                // A slow look at the leases keeps no new leader unknown.
                member.set_leaders(&keys, late.redirects(&leaders));
                late.look(etcd, &leaders, member.ttl_part(5));
                member.set_leaders(&keys, late.redirects(&leaders));
            }
        }
        member.nap(every);
    }
}

/// The leases of leaders that have missed renewals. Such a leader is gone, or will be silent in a
/// moment, long before its key is deleted.
#[derive(Default)]
struct Late {
    leases: Vec<u64>,
    /// Which leader is asked about next.
    next: usize,
}

impl Late {
    /// Asks for the leases of some of these leaders. Without an answer what was known before stays.
    fn look(&mut self, etcd: &mut dyn Etcd, leaders: &[Option<LeaderKey>], within: Duration) {
        let now: Vec<u64> = leaders.iter().flatten().map(|it| it.attempt[1]).collect();
        self.leases.retain(|lease| now.contains(lease));
        for _ in 0..now.len().min(LEASES_MAX) {
            let lease = now[self.next % now.len()];
            let asked = etcd.call(&Ask::TimeToLive { lease }, within);
            let Ok(Answer::TimeToLive { left_s, granted_s }) = asked else {
                return;
            };
            self.next = (self.next + 1) % now.len();
            self.leases.retain(|it| *it != lease);
            if is_late(left_s, granted_s) {
                self.leases.push(lease);
            }
        }
    }

    /// Where clients have to go: nowhere if the leader is late.
    fn redirects(&self, leaders: &[Option<LeaderKey>]) -> Vec<Redirect> {
        let is_late = |it: &LeaderKey| self.leases.contains(&it.attempt[1]);
        let redirect = |it: &Option<LeaderKey>| match it {
            Some(leader) if !is_late(leader) => leader.redirect(),
            _ => Redirect::default(),
        };
        leaders.iter().map(redirect).collect()
    }
}

/// The leader of each shard, as far as there is one.
fn leaders(
    etcd: &mut dyn Etcd,
    keys: &MapKeys,
    count: u32,
    within: Duration,
) -> Result<Vec<Option<LeaderKey>>, Trouble> {
    let [key, end] = keys.leaders();
    let get = Get {
        key,
        end,
        limit: u64::from(count),
        revision: 0,
    };
    let Answer::Range { got, .. } = etcd.call(&Ask::Range(get), within)? else {
        return Err(Trouble::Garbled("an answer to another question".to_owned()));
    };
    let mut leaders = vec![None; count as usize];
    for kv in &got.kvs {
        let place = keys.index_of(&kv.key);
        let place = place.and_then(|index| leaders.get_mut(index as usize));
        if let Some(place) = place {
            *place = LeaderKey::decode(&kv.value);
        }
    }
    Ok(leaders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::etcd::{Model, Op};

    struct Timed(Model, Nanos);

    impl Etcd for Timed {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            self.0.apply(self.1, ask)
        }
    }

    #[test]
    fn one_question_tells_who_leads_each_shard() {
        let mut etcd = Timed(Model::default(), Nanos(0));
        let keys = MapKeys::new("c", 2);
        let put = |key: Vec<u8>, value: Vec<u8>| Op::Put {
            key,
            value,
            lease: 0,
        };
        let leader = |line: &str| LeaderKey {
            attempt: [1, 2],
            line: line.to_owned(),
            http: String::new(),
        };
        let success = vec![
            put(keys.shard(0).listed(), leader("a:1").encode()),
            put(keys.shard(2).listed(), leader("c:3").encode()),
            put(keys.shard(3).listed(), b"what?".to_vec()),
            put(keys.shard(1).term(), leader("b:2").encode()),
            put(
                MapKeys::new("c", 3).shard(1).listed(),
                leader("x:9").encode(),
            ),
        ];
        let ask = Ask::Txn {
            compare: Vec::new(),
            success,
            failure: Vec::new(),
        };
        etcd.0.apply(Nanos(0), &ask).unwrap();
        let found = leaders(&mut etcd, &keys, 4, Duration::from_secs(1)).unwrap();
        let told = Late::default().redirects(&found);
        let lines: Vec<Option<&str>> = told.iter().map(|it| it.line.as_deref()).collect();
        assert_eq!(lines, [Some("a:1"), None, Some("c:3"), None]);
        // Fewer than there are: what is beyond is left out.
        let found = leaders(&mut etcd, &keys, 1, Duration::from_secs(1)).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn leader_of_another_shard_that_has_missed_renewals_is_not_named() {
        const SHARDS: u64 = LEASES_MAX as u64 + 2;
        let mut etcd = Timed(Model::default(), Nanos(0));
        let leader = |lease| {
            Some(LeaderKey {
                attempt: [9, lease],
                line: format!("a:{lease}"),
                http: String::new(),
            })
        };
        let leaders: Vec<_> = (1..=SHARDS).map(leader).collect();
        for _ in &leaders {
            etcd.0.apply(Nanos(0), &Ask::Grant { ttl_s: 5 }).unwrap();
        }
        let mut late = Late::default();
        let mut at = |ms: u64, renewed: u64| -> Vec<u64> {
            etcd.1 = Nanos(ms * 1_000_000);
            for lease in 1..=renewed {
                etcd.0.apply(etcd.1, &Ask::KeepAlive { lease }).unwrap();
            }
            late.look(&mut etcd, &leaders, Duration::from_secs(1));
            let lines = late
                .redirects(&leaders)
                .into_iter()
                .filter_map(|it| it.line);
            lines.map(|it| it[2..].parse().unwrap()).collect()
        };
        let all: Vec<u64> = (1..=SHARDS).collect();
        assert_eq!(at(1_900, 0), all, "one renewal is late");
        // The last two were not asked about the first time: now it is their turn.
        assert_eq!(at(2_100, 6), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(at(2_200, 6), [1, 2, 3, 4, 5, 6]);
        assert_eq!(at(2_300, 9), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
