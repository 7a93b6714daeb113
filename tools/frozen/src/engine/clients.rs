//! Attached clients: owners with an id, a secret and a time to live, that outlive their connections.
//!
//! A connection that attaches to a client acquires for it from then on; what it acquired before stays
//! its own. A client may have several connections at a time. When the last one is gone the client is
//! *away*: its waits and places in queues end, its grants stay, and a timer runs. If it comes back in
//! time, with the secret, the timer is cancelled and everything is its own again; otherwise it departs
//! like a connection that has ended, a quantum at a time, and is forgotten. To detach is to depart now.
//!
//! While something of a client is being undone, whoever wants to attach or detach it is put off, so
//! that nothing it acquires later is undone with it: see `clients_leaving.rs`. The grants of a client are kept over a restart
//! and given back to it (`restore.rs`); all clients are away then. What departs with an owner is in
//! `Stores::undo`.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, NONE, Stored};
use super::clients_leaving::LeftLately;
use super::conn::{Asker, Conn, ConnIndex};
use super::ctx::{Core, Ctx};
use super::owner::{Overdue, Owner, OwnerIndex, Owners, Presence};
use super::registered::Recording;
use super::types::{ADAPTER_DEFAULT, Attach, Effects, Record, Refusal, Secret, SecretHash};
use super::{Engine, Rules, work};
use crate::base::{ConnId, Millis, Nanos};
use crate::key::Key;
use crate::keymap::KeyMap;
use crate::memory::block_bytes;
use crate::timers::TimerId;

/// Most adapters at one time, so that whoever makes them up cannot have clients without end. A client
/// of one more is refused.
pub const ADAPTERS_MAX: usize = 256;

/// Most connections of one client that are told what it has lost: those that attached first.
const TOLD_MAX: usize = 8;

/// One client. Its id is the name of its owner.
pub(super) struct Client {
    pub(super) owner: OwnerIndex,
    /// The adapter that it has named, if it is not the one that its id names.
    pub(super) adapter: Option<Box<str>>,
    /// It is from before a restart and has not come back since: what adapter it had named is not known.
    pub(super) is_restored: bool,
    pub(super) ttl: Millis,
    pub(super) secret: SecretHash,
    /// When it became known to this process.
    pub(super) since: Nanos,
    /// When its last connection ended, or when it was last heard of without one.
    pub(super) seen: Nanos,
    /// Its connections, in the order in which they attached.
    pub(super) conns: Chain<OfClient>,
    /// How many of them the disk keeps waiting.
    stalled: u32,
    /// The record of the last thing that it was to be told on a connection which is not its own.
    pub(super) told_with: u64,
    /// How often it has come back, for whoever looks: a client that does so all the time has a bad line.
    pub(super) generation: u32,
    /// Runs while it is away.
    pub(super) timer: Option<TimerId>,
    pub(super) undoing: Undoing,
    /// It is known after a restart from now on, and this is how far what it had before is recorded.
    pub(super) recording: Option<Recording>,
    /// The connection that is told when the client is forgotten, because it has asked for that.
    pub(super) detached_by: Option<ConnId>,
}

/// What is being undone of a client. If it is not `Nothing`, the client is among those that depart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undoing {
    Nothing,
    /// It is away: so many of its tickets are still to be looked at.
    Places(u32),
    /// It is detached, and those that wait for it are still to be told so.
    Waits,
    /// It has no connection, and everything it has is released.
    All,
}

impl Client {
    /// What the name of its own adapter takes.
    fn adapter_bytes(&self) -> usize {
        let own = self.adapter.as_ref();
        own.map_or(0, |name| block_bytes(name.len()))
    }

    /// While this lasts, nobody may ask for it.
    pub(super) fn is_being_undone(&self) -> bool {
        self.undoing != Undoing::Nothing
    }
}

impl Stored for Client {}

/// The chain of a client's connections.
pub(super) struct OfClient;

pub(super) struct Clients {
    records: Arena<Client>,
    by_id: KeyMap,
    /// Adapters that have clients.
    adapters: BTreeMap<Box<str>, AdapterCounts>,
    /// What the names of adapters take, here and at clients.
    adapter_bytes: usize,
    /// How many clients have a connection.
    attached: usize,
    /// How often a client that had no connection has come back.
    returns: u64,
    /// Clients that count as such when they are made anew.
    pub(super) left: LeftLately,
    /// Connections that waited as a client when it was detached, and are still to be told so, by client.
    pub(super) parted: BTreeMap<u32, Vec<ConnId>>,
    /// For which clients requests wait for the disk, and how many: no more than there are connections.
    asked_for: BTreeMap<Box<str>, u32>,
}

/// About what it takes to know that; an id has up to so many bytes.
const ASKED_FOR_BYTES: usize = 320;

/// How many clients an adapter has, and their connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterCounts {
    /// Clients, with a connection or away.
    pub clients: u32,
    /// How many of them have a connection.
    pub attached: u32,
    /// Connections that are attached to one of them.
    pub conns: u32,
}

impl AdapterCounts {
    /// These and others.
    #[must_use]
    pub fn with(self, others: Self) -> Self {
        Self {
            clients: self.clients + others.clients,
            attached: self.attached + others.attached,
            conns: self.conns + others.conns,
        }
    }

    /// These without some of them.
    #[must_use]
    pub fn without(self, some: Self) -> Self {
        Self {
            clients: self.clients - some.clients,
            attached: self.attached - some.attached,
            conns: self.conns - some.conns,
        }
    }
}

/// The adapter that an id names: what stands before the first `/`.
pub(super) fn adapter_of(id: &str) -> &str {
    let adapter = id.split_once('/').map(|(adapter, _)| adapter);
    adapter
        .filter(|it| !it.is_empty())
        .unwrap_or(ADAPTER_DEFAULT)
}

impl Client {
    /// The adapter of the client with this id.
    pub(super) fn adapter<'a>(&'a self, id: &'a str) -> &'a str {
        self.adapter.as_deref().unwrap_or_else(|| adapter_of(id))
    }
}

/// What one adapter takes.
fn adapter_bytes(adapter: &str) -> usize {
    block_bytes(adapter.len()) + 2 * size_of::<(Box<str>, AdapterCounts)>()
}

impl Clients {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            records: Arena::new(),
            by_id: KeyMap::new(seed),
            adapters: BTreeMap::new(),
            adapter_bytes: 0,
            attached: 0,
            returns: 0,
            left: LeftLately::default(),
            parted: BTreeMap::new(),
            asked_for: BTreeMap::new(),
        }
    }

    pub(super) fn find(&self, owners: &Owners, id: &str) -> Option<u32> {
        let is_it = |client| owners[self.records[client].owner].name.as_deref() == Some(id);
        self.by_id.find(self.hash(id), is_it)
    }

    pub(super) fn hash(&self, id: &str) -> u32 {
        self.by_id.hash(id.as_bytes())
    }

    /// Makes a client with this id, which no other has. It is away, and nothing runs.
    pub(super) fn insert(
        &mut self,
        owners: &mut Owners,
        id: &str,
        adapter: Option<&str>,
        ttl: Millis,
        secret: SecretHash,
        now: Nanos,
    ) -> u32 {
        let adapter = adapter.filter(|it| *it != adapter_of(id));
        let owner = owners.insert_client(id, self.records.next_index());
        let client = self.records.insert(Client {
            owner,
            adapter: adapter.map(Into::into),
            is_restored: false,
            ttl,
            secret,
            since: now,
            seen: now,
            conns: Chain::new(),
            stalled: 0,
            told_with: 0,
            generation: 0,
            timer: None,
            undoing: Undoing::Nothing,
            recording: None,
            detached_by: None,
        });
        self.by_id.insert(self.hash(id), client);
        self.enter_adapter(client, id);
        client
    }

    pub(super) fn remove(&mut self, client: u32, id: &str) {
        self.leave_adapter(client, id);
        self.records.remove(client);
        self.by_id.remove(self.hash(id), client);
    }

    /// The client is one of its adapter from now on.
    fn enter_adapter(&mut self, client: u32, id: &str) {
        let it = &self.records[client];
        let (adapter, conns) = (it.adapter(id), it.conns.len());
        self.adapter_bytes += it.adapter_bytes();
        if !self.adapters.contains_key(adapter) {
            self.adapter_bytes += adapter_bytes(adapter);
            self.adapters
                .insert(adapter.into(), AdapterCounts::default());
        }
        if let Some(counts) = self.adapters.get_mut(adapter) {
            counts.clients += 1;
            counts.attached += u32::from(conns > 0);
            counts.conns += conns;
        }
    }

    fn leave_adapter(&mut self, client: u32, id: &str) {
        let it = &self.records[client];
        let (adapter, conns) = (it.adapter(id), it.conns.len());
        self.adapter_bytes -= it.adapter_bytes();
        if let Some(counts) = self.adapters.get_mut(adapter) {
            counts.clients -= 1;
            counts.attached -= u32::from(conns > 0);
            counts.conns -= conns;
            if counts.clients == 0 {
                self.adapters.remove(adapter);
                self.adapter_bytes -= adapter_bytes(adapter);
            }
        }
    }

    /// A connection of the client has come, or is gone.
    fn count_conn(&mut self, client: u32, id: &str, has_come: bool) {
        let it = &self.records[client];
        let conns = it.conns.len();
        let counts = self.adapters.get_mut(it.adapter(id));
        let counts = counts.expect("the adapter of a client is known");
        match has_come {
            true => {
                counts.conns += 1;
                counts.attached += u32::from(conns == 1);
            }
            false => {
                counts.conns -= 1;
                counts.attached -= u32::from(conns == 0);
            }
        }
    }

    /// How many clients of this adapter there are, and their connections.
    pub(super) fn of_adapter(&self, adapter: &str) -> AdapterCounts {
        self.adapters.get(adapter).copied().unwrap_or_default()
    }

    /// All clients and their connections. Walks over at most [`ADAPTERS_MAX`] adapters.
    pub(super) fn of_all_adapters(&self) -> AdapterCounts {
        let all = self.adapters.values();
        all.fold(AdapterCounts::default(), |all, it| all.with(*it))
    }

    /// Why there is no room for another client of this adapter, if there is none.
    fn has_room(&self, adapter: &str, rules: &Rules) -> Result<(), Refusal> {
        let per_adapter_max = rules.clients_per_adapter_max;
        let clients = self.of_adapter(adapter).clients;
        if let Some(limit) = rules.clients_max.iter().find(|it| *it.adapter == *adapter) {
            let has_room = clients < limit.clients;
            return has_room.then_some(()).ok_or(Refusal::AdapterFull);
        }
        let has_room = match clients {
            0 => self.adapters.len() < ADAPTERS_MAX,
            _ => per_adapter_max == 0 || clients < per_adapter_max,
        };
        has_room.then_some(()).ok_or(Refusal::MaxClients)
    }

    /// The client belongs to this adapter from now on.
    fn set_adapter(&mut self, client: u32, id: &str, adapter: &str) {
        self[client].is_restored = false;
        if self[client].adapter(id) != adapter {
            self.leave_adapter(client, id);
            let named = Some(adapter).filter(|it| *it != adapter_of(id));
            self[client].adapter = named.map(Into::into);
            self.enter_adapter(client, id);
        }
    }

    /// How often a client that had no connection has come back.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// How many of them have no connection.
    pub(super) fn away(&self) -> usize {
        self.records.len() - self.attached
    }

    /// What is in each slot from this one on. A client keeps its slot for as long as it is known.
    pub(super) fn slots_from(&self, slot: u32) -> impl Iterator<Item = (u32, Option<&Client>)> {
        self.records.slots_from(slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.records.iter()
    }

    pub(super) fn memory(&self) -> usize {
        let parted = self.parted.values().map(|it| it.capacity());
        let parted = parted.sum::<usize>() * size_of::<ConnId>();
        let asked_for = self.asked_for.len() * ASKED_FOR_BYTES;
        let known = self.records.memory() + self.by_id.memory() + self.adapter_bytes;
        known + self.left.memory() + parted + asked_for
    }

    #[cold]
    pub(super) fn set_asked_for(&mut self, id: &str, is_asked_for: bool) {
        let count = self.asked_for.get(id).copied().unwrap_or(0);
        match (count, is_asked_for) {
            (0 | 1, false) => _ = self.asked_for.remove(id),
            (_, false) => _ = self.asked_for.insert(id.into(), count - 1),
            (_, true) => _ = self.asked_for.insert(id.into(), count + 1),
        }
    }

    /// Whether a request for this client waits for the disk.
    pub(super) fn is_asked_for(&self, id: &str) -> bool {
        self.asked_for.contains_key(id)
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.records.tidy()
    }
}

impl Index<u32> for Clients {
    type Output = Client;

    fn index(&self, client: u32) -> &Client {
        &self.records[client]
    }
}

impl IndexMut<u32> for Clients {
    fn index_mut(&mut self, client: u32) -> &mut Client {
        &mut self.records[client]
    }
}

impl Engine {
    pub(super) fn attach(&mut self, now: Nanos, id: ConnId, attach: Attach<'_>, out: &mut Effects) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST + work::HASH);
        let (stores, mut cx) = self.split(now, now, out);
        let about = cx.begin(|| Some(attach.id.as_bytes()));
        let found = match cx.core.is_of_another(conn, attach.id) {
            true => Err(Refusal::OtherClient),
            false => stores.find_or_add_client(&mut cx, attach),
        };
        match found {
            Ok(Some((client, is_new))) => {
                cx.attach(conn, client, attach.id, is_new);
                cx.core.note_user(conn, cx.core.conns[conn].owner);
                let reply = stores.attached(&cx, client, is_new);
                cx.reply(conn, reply);
            }
            Ok(None) => cx.put_off(conn),
            Err(refusal) => cx.refuse(conn, refusal),
        }
        cx.finish(about);
    }

    /// Whether there is a client of this id, and this is not its secret.
    #[must_use]
    pub fn is_wrong_secret(&mut self, client: &str, secret: Secret<'_>) -> bool {
        self.core.work.charge(work::HASH);
        let Core {
            clients, owners, ..
        } = &self.core;
        let client = clients.find(owners, client);
        client.is_some_and(|client| !clients[client].secret.is_of(secret))
    }

    /// The disk keeps requests of a connection waiting, or no longer.
    pub(super) fn note_stalled(&mut self, now: Nanos, id: ConnId, stalled: bool) {
        let Some(conn) = self.core.conns.find(id) else {
            return;
        };
        let it = &mut self.core.conns[conn];
        let has_changed = std::mem::replace(&mut it.stalled, stalled) != stalled;
        let (own, is_attached) = (it.own, it.is_attached());
        if has_changed {
            self.core.owners.set_stalled(own, stalled.then_some(now));
            if is_attached {
                self.core.count_stalled(conn, stalled);
            }
        }
    }
}

impl Core {
    /// Whether the client of this id is known after a restart.
    pub(super) fn is_kept(&self, id: &str) -> bool {
        let client = self.clients.find(&self.owners, id);
        client.is_some_and(|client| self.clients[client].ttl > Millis::ZERO)
    }

    /// Whether the connection has attached, and not to the client of this id.
    fn is_of_another(&self, conn: ConnIndex, id: &str) -> bool {
        let present = self.client_of(conn);
        present.is_some() && present != self.clients.find(&self.owners, id)
    }

    /// The client that a connection has attached to.
    pub(super) fn client_of(&self, conn: ConnIndex) -> Option<u32> {
        let client = self.owners[self.conns[conn].owner].client;
        (client != NONE).then_some(client)
    }

    /// The connections of an owner that are there, to be told what happens to it: of a client only some.
    #[inline(never)]
    pub(super) fn connections_of(&self, owner: OwnerIndex) -> Vec<ConnIndex> {
        let Owner { conn, client, .. } = self.owners[owner];
        let conns = match client {
            NONE => Some(conn.0)
                .filter(|_| conn != ConnIndex::NONE)
                .into_iter()
                .collect(),
            client => {
                let conns = self.clients[client].conns.iter(self.conns.records());
                conns.take(TOLD_MAX).collect::<Vec<_>>()
            }
        };
        let conns = conns.into_iter().map(ConnIndex);
        conns.filter(|&conn| self.conns[conn].is_here()).collect()
    }

    /// How many connections a client has.
    pub(super) fn connections_of_client(&self, client: u32) -> u32 {
        self.clients[client].conns.len()
    }

    /// The waiters of the commands that connections of a client are parked in, as the client.
    pub(super) fn parked_of_client(&self, client: u32) -> impl Iterator<Item = u32> {
        let it = &self.clients[client];
        let conns = it.conns.iter(self.conns.records());
        let parked = conns.map(|conn| self.conns[ConnIndex(conn)].parked);
        parked.filter(|&waiter| waiter != NONE && self.waiters[waiter].owner == it.owner)
    }

    /// The connection acquires for this client from now on.
    fn join_client(&mut self, conn: ConnIndex, client: u32) {
        let it = &mut self.clients[client];
        let owner = &mut self.owners[it.owner];
        self.conns[conn].owner = it.owner;
        it.conns.push_back(self.conns.records_mut(), conn.0);
        let is_first = it.conns.len() == 1;
        if owner.presence == Presence::Away {
            owner.leave(Presence::Attached);
        }
        if self.conns[conn].stalled {
            self.count_stalled(conn, true);
        }
        self.clients.attached += usize::from(is_first);
        let owner = &self.owners[self.clients[client].owner];
        let id = owner.client_id().expect("a client has an id");
        self.clients.count_conn(client, id, true);
        self.stop_timer(client);
    }

    /// The connection is its own owner again; returns its client.
    pub(super) fn part(&mut self, conn: ConnIndex) -> u32 {
        if self.conns[conn].stalled {
            self.count_stalled(conn, false);
        }
        let it = &mut self.conns[conn];
        let owner = &self.owners[it.owner];
        let client = owner.client;
        it.owner = it.own;
        let conns = &mut self.clients[client].conns;
        conns.unlink(self.conns.records_mut(), conn.0);
        let was_last = conns.is_empty();
        self.clients.attached -= usize::from(was_last);
        let id = owner.client_id().expect("a client has an id");
        self.clients.count_conn(client, id, false);
        client
    }

    /// A client is stalled from when the first of its connections is until none is.
    fn count_stalled(&mut self, conn: ConnIndex, is_stalled: bool) {
        let Conn { owner, own, .. } = self.conns[conn];
        let stalled = &mut self.clients[self.owners[owner].client].stalled;
        match is_stalled {
            true => *stalled += 1,
            false => *stalled -= 1,
        }
        let since = match *stalled {
            0 => None,
            _ => self.owners.stalled_since(owner),
        };
        let since = since.or_else(|| self.owners.stalled_since(own).filter(|_| is_stalled));
        self.owners.set_stalled(owner, since);
    }

    pub(super) fn stop_timer(&mut self, client: u32) {
        let it = &mut self.clients[client];
        if let Some(timer) = it.timer.take() {
            self.timers.cancel(it.owner.0, timer);
        }
    }
}

impl Ctx<'_> {
    /// The connection acquires for the client of this id from now on, if it does not already.
    fn attach(&mut self, conn: ConnIndex, client: u32, id: &str, is_new: bool) {
        if self.core.client_of(conn).is_none() {
            let clients = &mut self.core.clients;
            let has_come_back = if is_new {
                self.core.work.charge(work::copy(clients.left.memory()));
                clients.left.take(self.now, clients.hash(id))
            } else {
                clients[client].conns.is_empty()
            };
            clients.returns += u64::from(has_come_back);
            if has_come_back && !is_new {
                let it = &mut clients[client];
                it.generation = it.generation.wrapping_add(1);
            }
            self.core.join_client(conn, client);
        }
    }

    /// The client of this id with this time to live, and whether it is new; none while what it left behind
    /// is being undone.
    pub(super) fn find_or_add_client(
        &mut self,
        attach: Attach<'_>,
    ) -> Result<Option<(u32, bool)>, Refusal> {
        let core = &*self.core;
        let Some(client) = core.clients.find(&core.owners, attach.id) else {
            return Ok(Some((self.add_client(attach)?, true)));
        };
        let it = &core.clients[client];
        if !it.secret.is_of(attach.secret) {
            return Err(Refusal::WrongSecret);
        } else if it.is_being_undone() {
            return Ok(None);
        }
        // After a restart a client is not refused, because the adapter it had named is not recorded.
        if let Some(adapter) = attach.adapter
            && it.adapter(attach.id) != adapter
            && !it.is_restored
        {
            core.clients.has_room(adapter, &core.rules)?;
        }
        self.set_ttl(client, attach.ttl)?;
        if let Some(adapter) = attach.adapter {
            self.core.clients.set_adapter(client, attach.id, adapter);
        }
        Ok(Some((client, false)))
    }

    /// The order is that of all requests: the disk first, memory last.
    fn add_client(&mut self, attach: Attach<'_>) -> Result<u32, Refusal> {
        let Attach {
            id,
            adapter,
            ttl,
            secret,
        } = attach;
        let core = &mut *self.core;
        if core.storage_full && ttl > Millis::ZERO {
            return Err(Refusal::Storage);
        } else if core.draining {
            return Err(Refusal::Draining);
        }
        let of = adapter.unwrap_or_else(|| adapter_of(id));
        core.clients.has_room(of, &core.rules)?;
        if core.memory_full {
            return Err(Refusal::Memory);
        }
        let secret = SecretHash::new(core.fences.next_salt(), secret);
        let clients = &mut core.clients;
        let client = clients.insert(&mut core.owners, id, adapter, ttl, secret, self.now);
        self.record_client(client);
        Ok(client)
    }

    fn set_ttl(&mut self, client: u32, ttl: Millis) -> Result<(), Refusal> {
        let it = &mut self.core.clients[client];
        if it.ttl == ttl {
            return Ok(());
        }
        if self.core.storage_full && ttl > Millis::ZERO {
            return Err(Refusal::Storage);
        }
        let before = std::mem::replace(&mut it.ttl, ttl);
        if ttl == Millis::ZERO {
            it.recording = None;
            self.record_gone(client, before);
            return Ok(());
        }
        if before == Millis::ZERO && self.core.records.is_some() {
            it.recording = Some(Recording::default());
        }
        self.record_client(client);
        Ok(())
    }

    /// Whether this is a client whose locks outlive the process as its own: it has to be known after a
    /// restart.
    pub(super) fn is_kept_client(&self, owner: OwnerIndex) -> bool {
        let client = self.core.owners[owner].client;
        self.core.is_durable() && client != NONE && self.core.clients[client].ttl > Millis::ZERO
    }

    pub(super) fn id_of(&self, client: u32) -> &str {
        let owner = &self.core.owners[self.core.clients[client].owner];
        owner.client_id().expect("a client has an id")
    }

    /// A client that is not kept without a connection would not be there after a restart, so there is
    /// nothing to record.
    fn record_client(&mut self, client: u32) {
        let Client { ttl, secret, .. } = self.core.clients[client];
        if ttl > Millis::ZERO && self.core.is_durable() {
            let id = Key::from(self.id_of(client).as_bytes());
            self.record(|_| Record::Client { id, ttl, secret });
        }
    }

    /// The same: `ttl` is what the records have.
    pub(super) fn record_gone(&mut self, client: u32, ttl: Millis) {
        if ttl > Millis::ZERO && self.core.is_durable() {
            let id = Key::from(self.id_of(client).as_bytes());
            self.record(|_| Record::ClientGone { id });
        }
    }
}

/// For checks.
impl Core {
    /// Checks what must hold of clients; returns how many timers they have.
    pub(super) fn check_clients(&self) -> usize {
        assert_eq!(self.clients.by_id.len(), self.clients.len());
        let mut adapters: BTreeMap<Box<str>, AdapterCounts> = BTreeMap::new();
        let (mut attached, mut with_conn) = (0, 0);
        for (client, it) in self.clients.iter() {
            let owner = &self.owners[it.owner];
            assert_eq!(owner.client, client, "an owner of another client");
            let id = owner.client_id().expect("a client has an id");
            let counts = adapters.entry(it.adapter(id).into()).or_default();
            counts.clients += 1;
            counts.attached += u32::from(!it.conns.is_empty());
            counts.conns += it.conns.len();
            let conns = it.conns.iter(self.conns.records());
            let stalled = conns.filter(|&conn| {
                let conn = &self.conns[ConnIndex(conn)];
                assert!(
                    conn.owner == it.owner && conn.is_here(),
                    "in another's chain"
                );
                conn.stalled
            });
            assert_eq!(stalled.count(), it.stalled as usize, "stalled ones");
            attached += it.conns.len() as usize;
            with_conn += usize::from(!it.conns.is_empty());
            let is_away = it.conns.is_empty();
            assert!(
                is_away == (owner.presence != Presence::Attached),
                "there or away"
            );
            let may_run = owner.presence == Presence::Away && owner.overdue == Overdue::End;
            assert!(
                may_run || it.timer.is_none(),
                "the time of one who is there runs"
            );
        }
        let is_attached = self.conns.iter().filter(|it| it.is_attached()).count();
        assert_eq!(is_attached, attached, "attached to nobody");
        assert_eq!(with_conn, self.clients.attached, "who is attached");
        assert_eq!(adapters, self.clients.adapters, "of adapters");
        let with_timer = self.clients.iter().filter(|(_, it)| it.timer.is_some());
        with_timer.count()
    }
}
