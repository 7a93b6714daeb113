//! The thread that knows who leads the other shards, so that clients can be sent there.
//!
//! It asks for all of them at once, with one question, every fifth of the time to live and at least once a
//! second, whatever this member does meanwhile. What it knows is good for nothing but telling clients where to
//! ask: whoever does not lead says so itself. There is no such thread if there is one shard.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::leader_key::LeaderKey;
use super::member::Member;
use crate::etcd::{Answer, Ask, Etcd, Get, Trouble};
use crate::store::Redirect;
use crate::store::etcd::MapKeys;

/// The longest time between two looks.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

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
    while !member.is_over() {
        if let Some(keys) = member.map_keys() {
            let count = member.options.shard.count();
            // Without an answer what was known before is better than nothing.
            if let Ok(leaders) = leaders(etcd, &keys, count, member.ttl_part(2)) {
                member.set_leaders(&keys, leaders);
            }
        }
        member.nap(every);
    }
}

/// Where the leader of each shard is, as far as there is one.
fn leaders(
    etcd: &mut dyn Etcd,
    keys: &MapKeys,
    count: u32,
    within: Duration,
) -> Result<Vec<Redirect>, Trouble> {
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
    let mut leaders = vec![Redirect::default(); count as usize];
    for kv in &got.kvs {
        let place = keys.index_of(&kv.key);
        let place = place.and_then(|index| leaders.get_mut(index as usize));
        if let (Some(place), Some(leader)) = (place, LeaderKey::decode(&kv.value)) {
            *place = leader.redirect();
        }
    }
    Ok(leaders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::etcd::{Model, Op};

    struct TestEtcd(Model);

    impl Etcd for TestEtcd {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            self.0.apply(Nanos(0), ask)
        }
    }

    #[test]
    fn one_question_tells_who_leads_each_shard() {
        let mut etcd = TestEtcd(Model::default());
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
        let lines: Vec<Option<&str>> = found.iter().map(|it| it.line.as_deref()).collect();
        assert_eq!(lines, [Some("a:1"), None, Some("c:3"), None]);
        // Fewer than there are: what is beyond is left out.
        let found = leaders(&mut etcd, &keys, 1, Duration::from_secs(1)).unwrap();
        assert_eq!(found.len(), 1);
    }
}
