//! Records as an engine could say them, what they amount to, and a life that writes them to a disk.

use std::collections::{BTreeMap, VecDeque};

use latch_sim::FaultDisk;
use latchd::base::{Fence, Millis, Nanos, Token};
use latchd::engine::types::{
    ByteRange, End, Mode, RangeGrant, Record, Secret, SecretHash, Sharing,
};
use latchd::key::Key;
use latchd::store::{
    Batch, Beginning, Begun, Clocks, Disk, Durability, Found, Job, OpenError, Restore, Trouble,
    Writer, begin,
};

/// One moment for all tests, so that times come back as they went.
pub(crate) const CLOCKS: Clocks = Clocks {
    now: Nanos(0),
    wall_ms: 1_800_000_000_000,
};

pub(crate) const SALT: u32 = 0x0bad_5a17;

pub(crate) fn key(name: &str) -> Key {
    Key::from(name.as_bytes())
}

pub(crate) fn granted(name: &str, fence: u64) -> Record {
    granted_as(name, fence, Mode::Slot { limit: 1 })
}

pub(crate) fn granted_as(name: &str, fence: u64, mode: Mode) -> Record {
    Record::Granted {
        key: key(name),
        mode,
        token: Token {
            fence: Fence(fence),
            salt: fence.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        },
        lease: Millis(30_000),
        client: fence as u32,
        name: fence.is_multiple_of(3).then(|| "worker".into()),
        request: Box::default(),
    }
}

/// A lock of an owner that is known by its name, asked for with this id.
pub(crate) fn granted_to(key: &str, fence: u64, owner: &str, id: &[u8]) -> Record {
    let mut record = granted(key, fence);
    if let Record::Granted {
        client,
        name,
        request,
        ..
    } = &mut record
    {
        (*client, *name, *request) = (0, Some(owner.into()), id.into());
    }
    record
}

pub(crate) fn ended(name: &str, fence: u64) -> Record {
    Record::Ended {
        key: key(name),
        fence: Fence(fence),
    }
}

/// A grant that is a client's from now on.
pub(crate) fn owned(key: impl AsRef<[u8]>, fence: u64, client: &str) -> Record {
    Record::Owned {
        key: key.as_ref().into(),
        fence: Fence(fence),
        client: client.as_bytes().into(),
    }
}

pub(crate) fn stored(name: &str, value: &[u8]) -> Record {
    Record::Stored {
        key: key(name),
        value: value.into(),
        ends: None,
    }
}

/// Bytes of a resource, which an owner of a client has from now on like this.
pub(crate) fn ranged(
    [resource, client, owner]: [&str; 3],
    (start, last): (u64, u64),
    mode: Option<Sharing>,
) -> Record {
    Record::Ranged {
        resource: key(resource),
        client: key(client),
        owner: key(owner),
        range: ByteRange::between(start, last).unwrap(),
        mode,
        grant: RangeGrant::default(),
    }
}

/// The same with this number, made so long after the beginning of the clocks.
pub(crate) fn numbered(mut record: Record, id: u64, after_ms: u64, epoch: u64) -> Record {
    if let Record::Ranged { grant, .. } = &mut record {
        let since = (CLOCKS.wall_ms + after_ms) * 1_000_000;
        *grant = RangeGrant { id, since, epoch };
    }
    record
}

pub(crate) fn client(id: &str) -> Record {
    Record::Client {
        id: key(id),
        ttl: Millis(90_000),
        secret: SecretHash::new([7; 16], Secret(id.as_bytes())),
    }
}

/// Bytes that are locked: the first one, the one behind the last, and how.
pub(crate) type LockedBytes = (u128, u128, Sharing);

/// What records amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// By fence: key, how it is held, the token's salt, lease.
    pub grants: BTreeMap<u64, (Vec<u8>, String, u64, u64)>,
    pub counters: BTreeMap<Vec<u8>, i64>,
    pub values: BTreeMap<Vec<u8>, (Vec<u8>, Option<Nanos>)>,
    pub lists: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// By id: the time to live, and the hash of the secret.
    pub clients: BTreeMap<Vec<u8>, (u64, [u8; 32])>,
    /// By resource, client and owner.
    pub ranges: BTreeMap<[Vec<u8>; 3], Vec<LockedBytes>>,
    pub fences: u64,
}

impl State {
    pub(crate) fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut state = Self::default();
        for record in records {
            state.apply(record);
        }
        state
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        match record {
            Record::Granted {
                key,
                mode,
                token,
                lease,
                client,
                name,
                request,
            } => {
                let id = request.escape_ascii();
                let how = format!("{mode:?} {client} {name:?} {id}");
                let grant = (key.as_bytes().to_vec(), how, token.salt, lease.0);
                self.grants.insert(token.fence.0, grant);
            }
            Record::Lengthened { fence, lease, .. } => {
                if let Some(grant) = self.grants.get_mut(&fence.0) {
                    grant.3 = lease.0;
                }
            }
            Record::Owned { fence, client, .. } => {
                if let Some(grant) = self.grants.get_mut(&fence.0) {
                    let how = grant.1.split(" now ").next().unwrap_or_default();
                    grant.1 = format!("{how} now {client:?}");
                }
            }
            Record::Ended { fence, .. } => {
                self.grants.remove(&fence.0);
            }
            Record::Counted { key, value: 0 } => {
                self.counters.remove(key.as_bytes());
            }
            Record::Counted { key, value } => {
                self.counters.insert(key.as_bytes().to_vec(), *value);
            }
            Record::Stored { key, value, ends } => {
                let value = (value.to_vec(), *ends);
                self.values.insert(key.as_bytes().to_vec(), value);
            }
            Record::Deleted { key } => {
                self.values.remove(key.as_bytes());
            }
            Record::Pushed { key, end, value } => {
                let list = self.lists.entry(key.as_bytes().to_vec()).or_default();
                match end {
                    End::Left => list.push_front(value.to_vec()),
                    End::Right => list.push_back(value.to_vec()),
                }
            }
            Record::Popped { key, end } => {
                if let Some(list) = self.lists.get_mut(key.as_bytes()) {
                    match end {
                        End::Left => list.pop_front(),
                        End::Right => list.pop_back(),
                    };
                    if list.is_empty() {
                        self.lists.remove(key.as_bytes());
                    }
                }
            }
            Record::Client { id, ttl, secret } => {
                let client = (ttl.0, secret.hash);
                self.clients.insert(id.as_bytes().to_vec(), client);
            }
            Record::ClientGone { id } => {
                self.clients.remove(id.as_bytes());
                self.ranges
                    .retain(|[_, client, _], _| client != id.as_bytes());
            }
            Record::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                ..
            } => {
                let owner = [resource, client, owner].map(|it| it.as_bytes().to_vec());
                let new = (u128::from(range.start()), u128::from(range.last()) + 1);
                let before = self.ranges.remove(&owner).unwrap_or_default();
                let after = lock_bytes(&before, new, *mode);
                if !after.is_empty() {
                    self.ranges.insert(owner, after);
                }
            }
            Record::Fences { upto } => self.fences = upto.0,
        }
    }
}

impl State {
    /// Whether two owners have bytes that they cannot have both.
    pub(crate) fn ranges_conflict(&self) -> bool {
        let mut all = Vec::new();
        for (owner, ranges) in &self.ranges {
            all.extend(ranges.iter().map(|range| (owner, range)));
        }
        all.iter().enumerate().any(|(index, (owner, one))| {
            all[index + 1..].iter().any(|(other, two)| {
                let is_alone = [one.2, two.2].contains(&Sharing::Exclusive);
                let both = one.0 < two.1 && two.0 < one.1;
                owner[0] == other[0] && owner != other && both && is_alone
            })
        })
    }
}

/// What an owner has after a change: between any two places where something begins or ends, all bytes
/// are alike. As plain as it can be, because it judges those who do it fast.
fn lock_bytes(
    before: &[LockedBytes],
    (start, end): (u128, u128),
    mode: Option<Sharing>,
) -> Vec<LockedBytes> {
    let mut places = vec![start, end];
    places.extend(before.iter().flat_map(|it| [it.0, it.1]));
    places.sort_unstable();
    places.dedup();
    let mut after: Vec<LockedBytes> = Vec::new();
    for pair in places.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let known = before.iter().find(|it| it.0 <= from && to <= it.1);
        let mode = match start <= from && to <= end {
            true => mode,
            false => known.map(|it| it.2),
        };
        match (mode, after.last_mut()) {
            (None, _) => {}
            (Some(mode), Some(last)) if (last.1, last.2) == (from, mode) => last.1 = to,
            (Some(mode), _) => after.push((from, to, mode)),
        }
    }
    after
}

/// Makes records that make sense one after the other.
pub(crate) struct Maker {
    pub chance: fastrand::Rng,
    state: State,
    fence: u64,
    /// How many names there are of each kind.
    names: u64,
    value_bytes_max: usize,
}

impl Maker {
    pub(crate) fn new(seed: u64, names: u64, value_bytes_max: usize) -> Self {
        Self {
            chance: fastrand::Rng::with_seed(seed),
            state: State::default(),
            fence: 1_000,
            names,
            value_bytes_max,
        }
    }

    /// After a crash: what is left.
    pub(crate) fn go_on_from(&mut self, state: State) {
        let last = state.grants.keys().max().copied().unwrap_or(0);
        self.fence = self.fence.max(last).max(state.fences);
        self.state = state;
    }

    pub(crate) fn next(&mut self) -> Record {
        let record = self.choose();
        self.state.apply(&record);
        record
    }

    fn choose(&mut self) -> Record {
        let chance = &mut self.chance;
        let name = format!("name {}", chance.u64(..self.names));
        let end = if chance.bool() { End::Left } else { End::Right };
        let value: Vec<u8> = (0..chance.usize(..=self.value_bytes_max))
            .map(|_| chance.u8(..))
            .collect();
        let holders = &self.state.grants;
        let held = match holders.len() {
            0 => None,
            count => holders.iter().nth(chance.usize(..count)),
        };
        let is_crowded = holders.len() as u64 > self.names;
        let known = match self.state.clients.len() {
            0 => None,
            count => self.state.clients.keys().nth(chance.usize(..count)),
        };
        if let Some(id) = known.filter(|_| chance.u8(..4) == 0) {
            // Few places, so that ranges meet: at both ends of all bytes there are, and in between.
            let mut place = || match chance.u8(..8) {
                0 => u64::MAX,
                1 => (1 << 63) - chance.u64(..2),
                _ => chance.u64(..24),
            };
            let (one, other) = (place(), place());
            let shared = format!("file {}", chance.u64(..2));
            let modes = [None, Some(Sharing::Shared), Some(Sharing::Exclusive)];
            let (mode, shares) = (modes[chance.usize(..3)], chance.bool());
            let owner = ["", "me", "you"][chance.usize(..3)];
            let resource = if shares { shared } else { name };
            let locked = |mode| Record::Ranged {
                resource: key(&resource),
                client: id[..].into(),
                owner: key(owner),
                range: ByteRange::between(one.min(other), one.max(other)).unwrap(),
                mode,
                grant: RangeGrant::default(),
            };
            let record = locked(mode);
            let ranges = self.state.ranges.iter();
            let of_resource = ranges.filter(|(owner, _)| owner[0] == resource.as_bytes());
            let mut after = State {
                ranges: of_resource
                    .map(|(it, its)| (it.clone(), its.clone()))
                    .collect(),
                ..State::default()
            };
            after.apply(&record);
            return match after.ranges_conflict() {
                true => locked(None),
                false => record,
            };
        }
        match (chance.u8(..11), held) {
            (0..=2, Some((&fence, (key, ..)))) => Record::Ended {
                key: key[..].into(),
                fence: Fence(fence),
            },
            (3, Some((&fence, (key, _, _, lease)))) => Record::Lengthened {
                key: key[..].into(),
                fence: Fence(fence),
                lease: Millis(lease + 1),
            },
            (4, Some((&fence, (key, ..)))) if chance.bool() => owned(key, fence, &name),
            (0..=4, _) if !is_crowded => {
                self.fence += 1;
                let modes = [Mode::Slot { limit: 9 }, Mode::Read, Mode::Lead, Mode::Write];
                granted_as(&name, self.fence, modes[chance.usize(..4)])
            }
            (0..=4, _) => {
                self.fence += 100;
                Record::Fences {
                    upto: Fence(self.fence),
                }
            }
            (5, _) => Record::Counted {
                key: key(&name),
                value: chance.i64(-1..=1),
            },
            (6, _) => Record::Stored {
                key: key(&name),
                value: value.into(),
                ends: chance.bool().then(|| Nanos(chance.u64(1..99) * 1_000_000)),
            },
            (7, _) => Record::Deleted { key: key(&name) },
            (8, _) => Record::Popped {
                key: key(&name),
                end,
            },
            (9, _) if chance.bool() => Record::Client {
                id: key(&name),
                ttl: Millis(chance.u64(1..9)),
                secret: SecretHash::new([7; 16], Secret(&value)),
            },
            (9, _) => Record::ClientGone { id: key(&name) },
            _ if self
                .state
                .lists
                .get(name.as_bytes())
                .is_some_and(|it| it.len() > 5) =>
            {
                Record::Popped {
                    key: key(&name),
                    end,
                }
            }
            _ => Record::Pushed {
                key: key(&name),
                end,
                value: value.into(),
            },
        }
    }
}

/// What a life of a test is told.
pub(crate) fn beginning(durability: Durability, segment_bytes: u64) -> Beginning {
    Beginning {
        durability,
        segment_bytes,
        salt: SALT,
        wall_ms: CLOCKS.wall_ms,
    }
}

/// A life on a disk, stepped by the test.
pub(crate) struct Life<D: Disk> {
    pub writer: Writer<D>,
    pub found: Found,
    pub epoch: u64,
    restore: Restore<D>,
    salt: u32,
    next: u64,
    batch: Batch,
}

impl<D: Disk> Life<D> {
    pub(crate) fn begin(
        disk: &D,
        durability: Durability,
        segment_bytes: u64,
    ) -> Result<Self, OpenError> {
        let beginning = beginning(durability, segment_bytes);
        let Begun {
            writer,
            life,
            found,
            restore,
        } = begin(disk.clone(), beginning, &mut |_| {})?;
        Ok(Self {
            next: found.last + 1,
            writer,
            found,
            epoch: life.epoch,
            restore,
            salt: life.salt,
            batch: Batch::default(),
        })
    }

    /// Everything that was there when the life began.
    pub(crate) fn restored(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let record = |record| records.push(record);
        self.restore.each(CLOCKS, record, |_| {}).unwrap();
        records
    }

    pub(crate) fn push(&mut self, record: &Record) {
        self.batch.push(self.salt, self.next, record, || CLOCKS);
        self.next += 1;
    }

    /// Writes what was pushed; keeps it if there is no room.
    pub(crate) fn write(&mut self) -> Result<(), Trouble> {
        self.writer.write(&mut self.batch)?;
        self.batch.clear_and_keep(1 << 20);
        Ok(())
    }

    pub(crate) fn write_all(&mut self, records: &[Record]) -> Result<(), Trouble> {
        records.iter().for_each(|record| self.push(record));
        self.write()
    }

    /// Compacts if it is time to.
    pub(crate) fn compact(&mut self, disk: &D) -> bool {
        let Some(job) = self.writer.compaction() else {
            return false;
        };
        let result = Job::run(&job, disk, &|| false);
        let is_done = result.is_ok();
        self.writer.compacted(result.ok());
        is_done
    }

    /// Makes the next segment's file if it is time to.
    pub(crate) fn make_spare(&mut self, disk: &D) -> bool {
        let Some(job) = self.writer.spare_job() else {
            return false;
        };
        let spare = job.run(disk, &|| false).ok();
        let is_made = spare.is_some();
        self.writer.spare_is_made(spare);
        is_made
    }

    pub(crate) fn stop(self) -> Result<(), Trouble> {
        self.writer.stop(Some(CLOCKS.wall_ms))
    }
}

/// What is on a disk. It is opened, so its epoch grows.
pub(crate) fn state_on(disk: &FaultDisk) -> Result<State, OpenError> {
    let life = Life::begin(disk, Durability::Sync, 4096)?;
    Ok(State::of(&life.restored()))
}

impl State {
    /// Everything that was ever there: no removal, and the highest of what only grows.
    pub(crate) fn ever(records: &[Record]) -> Self {
        let mut state = Self::default();
        for record in records {
            if !matches!(record, Record::Ended { .. }) {
                state.apply(record);
            }
            let fence = state.grants.keys().max().copied().unwrap_or(0);
            state.fences = state.fences.max(fence);
        }
        state
    }

    /// Each grant was made once. Values and the like are looked at only as far as that goes.
    pub(crate) fn is_part_of(&self, ever: &Self) {
        for (fence, (key, how, salt, _)) in &self.grants {
            let (known_key, known_how, known_salt, _) = &ever.grants[fence];
            assert_eq!((key, how, salt), (known_key, known_how, known_salt));
        }
    }
}
