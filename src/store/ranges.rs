//! The byte ranges that records leave: for those who replay records without an engine.
//!
//! A record says what one owner's bytes of a resource are from then on. What is left of many is one
//! range for each run of bytes that the owner holds alike, so memory and the size of a snapshot
//! depend on how many ranges are locked and not on how many records it took to lock them. Never asks
//! whether two owners may hold the same bytes: the engine did before it wrote the record. Only a
//! repair has to ask again, because records are missing then ([`Ranges::make_way`]).

use std::collections::BTreeMap;

use crate::segments::{ByteRange, Grant, Grants, RangeGrant, Segment, Segments, Sharing};

/// All ranges that are locked.
#[derive(Default)]
pub(super) struct Ranges {
    /// By client, because that is how many of them end at once.
    clients: BTreeMap<Box<str>, OfClient>,
    grants: Grants,
}

/// By resource.
type OfClient = BTreeMap<Box<[u8]>, OfResource>;

/// By owner, each with segments of its own: what two owners have is not compared here.
type OfResource = BTreeMap<Box<[u8]>, Segments>;

/// The only owner that there is in segments which belong to one owner.
const ITSELF: u32 = 0;

/// The id of what was split off in a repair, until it has one.
const UNNUMBERED: u64 = 0;

/// A range that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockedRange<'a> {
    pub(super) resource: &'a [u8],
    pub(super) client: &'a str,
    pub(super) owner: &'a [u8],
    pub(super) range: ByteRange,
    pub(super) mode: Sharing,
    pub(super) grant: RangeGrant,
}

impl Ranges {
    /// These bytes are locked like this from now on, or not any more.
    pub(super) fn set(
        &mut self,
        resource: &[u8],
        client: &str,
        owner: &[u8],
        range: ByteRange,
        mode: Option<Sharing>,
        grant: RangeGrant,
    ) {
        let grant = self.grants.restored(grant);
        let Some(mode) = mode else {
            return self.unlock(resource, client, owner, range, grant.id);
        };
        let of_client = or_default(&mut self.clients, client);
        let of_resource = or_default(of_client, resource);
        or_default(of_resource, owner).set(ITSELF, range, mode, grant);
    }

    /// Leaves nothing behind that has no ranges.
    fn unlock(
        &mut self,
        resource: &[u8],
        client: &str,
        owner: &[u8],
        range: ByteRange,
        behind: u64,
    ) {
        let Some(of_client) = self.clients.get_mut(client) else {
            return;
        };
        let Some(of_resource) = of_client.get_mut(resource) else {
            return;
        };
        let Some(locked) = of_resource.get_mut(owner) else {
            return;
        };
        locked.unlock(ITSELF, range, behind);
        if locked.is_empty() {
            of_resource.remove(owner);
        }
        if of_resource.is_empty() {
            of_client.remove(resource);
        }
        if of_client.is_empty() {
            self.clients.remove(client);
        }
    }

    /// Everything that this client has locked is not locked any more.
    pub(super) fn forget_client(&mut self, client: &str) {
        self.clients.remove(client);
    }

    /// Forgets the clients of whom this is not so.
    pub(super) fn retain_clients(&mut self, mut is_known: impl FnMut(&str) -> bool) {
        self.clients.retain(|client, _| is_known(client));
    }

    /// Ends what other owners cannot have beside this new lock, as far as they cannot. Returns how many
    /// ranges were ended or made smaller.
    ///
    /// `clients` are those who may have something of the resource.
    pub(super) fn make_way<'a>(
        &mut self,
        new: LockedRange<'_>,
        clients: impl IntoIterator<Item = &'a str>,
    ) -> u64 {
        let mut ended = 0;
        for client in clients {
            let of_client = self.clients.get(client);
            let Some(of_resource) = of_client.and_then(|it| it.get(new.resource)) else {
                continue;
            };
            let others = of_resource
                .iter()
                .filter(|(owner, _)| (client, &***owner) != (new.client, new.owner));
            let mut in_the_way: Vec<(Box<[u8]>, Segment)> = Vec::new();
            for (owner, locked) in others {
                let both = locked.of_owner_overlapping(ITSELF, new.range);
                let both = both.filter(|it| it.mode.excludes(new.mode));
                in_the_way.extend(both.map(|it| (owner.clone(), it)));
            }
            for (owner, Segment { range, .. }) in in_the_way {
                let start = range.start().max(new.range.start());
                let last = range.last().min(new.range.last());
                let both = ByteRange::between(start, last).expect("they overlap");
                self.unlock(new.resource, client, &owner, both, UNNUMBERED);
                ended += 1;
            }
        }
        ended
    }

    /// Numbers what [`Ranges::make_way`] has split off, when every record was read that may have a number.
    pub(super) fn number_split(&mut self) {
        let of_clients = self.clients.values_mut();
        let of_resources = of_clients.flat_map(BTreeMap::values_mut);
        for locked in of_resources.flat_map(BTreeMap::values_mut) {
            let all = locked.of_owner(ITSELF);
            let split: Vec<Segment> = all.filter(|it| it.id == UNNUMBERED).collect();
            for it in split {
                locked.unlock(ITSELF, it.range, UNNUMBERED);
                let grant = Grant {
                    id: self.grants.next_id(0),
                    since: it.since,
                    life: it.life,
                };
                locked.set(ITSELF, it.range, it.mode, grant);
            }
        }
    }

    /// All of them, always in the same order.
    pub(super) fn iter(&self) -> impl Iterator<Item = LockedRange<'_>> {
        let resources = self.clients.iter().flat_map(|(client, of_client)| {
            let resources = of_client.iter();
            resources.map(move |(resource, owners)| (client, resource, owners))
        });
        let owners = resources.flat_map(|(client, resource, owners)| {
            let owners = owners.iter();
            owners.map(move |(owner, locked)| (client, resource, owner, locked))
        });
        owners.flat_map(move |(client, resource, owner, locked)| {
            locked.of_owner(ITSELF).map(move |it| LockedRange {
                grant: RangeGrant {
                    id: it.id,
                    since: it.since,
                    epoch: self.grants.epoch_of(it.life).unwrap_or_default(),
                },
                resource,
                client,
                owner,
                range: it.range,
                mode: it.mode,
            })
        })
    }
}

/// What is there under this name, so that only a new name is copied.
fn or_default<'m, K, T: Default>(map: &'m mut BTreeMap<Box<K>, T>, name: &K) -> &'m mut T
where
    K: Ord + ?Sized,
    Box<K>: for<'k> From<&'k K>,
{
    if !map.contains_key(name) {
        map.insert(name.into(), T::default());
    }
    map.get_mut(name).expect("it was there, or was put there")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Option<Sharing> = Some(Sharing::Shared);
    const EXCLUSIVE: Option<Sharing> = Some(Sharing::Exclusive);

    fn range(start: u64, last: u64) -> ByteRange {
        ByteRange::between(start, last).unwrap()
    }

    fn set(
        ranges: &mut Ranges,
        resource: &[u8],
        client: &str,
        owner: &[u8],
        range: ByteRange,
        mode: Option<Sharing>,
    ) {
        ranges.set(resource, client, owner, range, mode, RangeGrant::default());
    }

    /// What is left, as text.
    fn shown(ranges: &Ranges) -> Vec<String> {
        let shown = |it: LockedRange<'_>| {
            let LockedRange {
                resource,
                client,
                owner,
                range,
                mode,
                ..
            } = it;
            let (resource, owner) = (resource.escape_ascii(), owner.escape_ascii());
            let (start, last) = (range.start(), range.last());
            format!("{resource} {client} {owner} {start}-{last} {mode:?}")
        };
        ranges.iter().map(shown).collect()
    }

    #[test]
    fn owners_clients_and_resources_are_apart() {
        let mut ranges = Ranges::default();
        set(&mut ranges, b"r", "a", b"b", range(0, 9), SHARED);
        set(&mut ranges, b"r", "ab", b"", range(0, 9), SHARED);
        set(&mut ranges, b"ra", "b", b"", range(0, 9), SHARED);
        set(&mut ranges, b"r", "a", b"", range(5, 9), EXCLUSIVE);
        set(&mut ranges, b"r", "a", b"b", range(0, 4), None);
        let wanted = [
            "r a  5-9 Exclusive",
            "r a b 5-9 Shared",
            "r ab  0-9 Shared",
            "ra b  0-9 Shared",
        ];
        assert_eq!(shown(&ranges), wanted);
        ranges.forget_client("a");
        assert_eq!(shown(&ranges), wanted[2..]);
    }

    #[test]
    fn nothing_is_left_of_what_was_unlocked() {
        let mut ranges = Ranges::default();
        for round in 0..9u64 {
            let resource = round.to_le_bytes();
            set(
                &mut ranges,
                &resource,
                "a",
                b"",
                range(round, u64::MAX),
                SHARED,
            );
            set(&mut ranges, &resource, "a", b"", range(0, u64::MAX), None);
        }
        set(&mut ranges, b"r", "a", b"", range(0, 1), None);
        assert!(ranges.clients.is_empty());
    }

    #[test]
    fn who_cannot_have_bytes_beside_a_new_lock_makes_way_with_these_bytes_only() {
        let new = |mode| LockedRange {
            resource: b"r",
            client: "b",
            owner: b"",
            range: range(10, 19),
            mode,
            grant: RangeGrant::default(),
        };
        let clients = ["a", "b", "c", "nobody"];
        let before = || {
            let mut ranges = Ranges::default();
            set(&mut ranges, b"r", "a", b"", range(0, 12), EXCLUSIVE);
            set(&mut ranges, b"r", "a", b"", range(13, 14), SHARED);
            set(&mut ranges, b"r", "b", b"", range(15, 15), EXCLUSIVE);
            set(&mut ranges, b"r", "b", b"other", range(16, 16), EXCLUSIVE);
            set(&mut ranges, b"r", "c", b"", range(20, 29), EXCLUSIVE);
            set(&mut ranges, b"s", "a", b"", range(10, 19), EXCLUSIVE);
            ranges
        };
        let mut ranges = before();
        assert_eq!(ranges.make_way(new(Sharing::Shared), clients), 2);
        let wanted = [
            "r a  0-9 Exclusive",
            "r a  13-14 Shared",
            "s a  10-19 Exclusive",
            "r b  15-15 Exclusive",
            "r c  20-29 Exclusive",
        ];
        assert_eq!(shown(&ranges), wanted);
        let mut ranges = before();
        assert_eq!(ranges.make_way(new(Sharing::Exclusive), clients), 3);
        let wanted = [wanted[0], wanted[2], wanted[3], wanted[4]];
        assert_eq!(shown(&ranges), wanted);
    }
}
