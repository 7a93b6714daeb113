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
use super::conn::{Asker, Conn, ConnIndex};
use super::ctx::{Core, Ctx};
use super::owner::{Overdue, Owner, OwnerIndex, Owners, Presence};
use super::registered::Recording;
use super::types::{Attach, Effects, Record, Refusal, Secret, SecretHash};
use super::{Engine, work};
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
    pub(super) ttl: Millis,
    pub(super) secret: SecretHash,
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
    /// How many clients each adapter has; only those that have one.
    adapters: BTreeMap<Box<str>, u32>,
    /// What the names of adapters take.
    adapter_bytes: usize,
    /// How many clients have a connection.
    attached: usize,
    /// Connections that waited as a client when it was detached, and are still to be told so, by client.
    pub(super) parted: BTreeMap<u32, Vec<ConnId>>,
    /// For which clients requests wait for the disk, and how many: no more than there are connections.
    asked_for: BTreeMap<Box<str>, u32>,
}

/// About what it takes to know that; an id has up to so many bytes.
const ASKED_FOR_BYTES: usize = 320;

/// What stands before the first `/`; without one there is a nameless adapter.
pub(super) fn adapter_of(id: &str) -> &str {
    id.split_once('/').map_or("", |(adapter, _)| adapter)
}

/// What one adapter takes.
fn adapter_bytes(adapter: &str) -> usize {
    block_bytes(adapter.len()) + 2 * size_of::<(Box<str>, u32)>()
}

impl Clients {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            records: Arena::new(),
            by_id: KeyMap::new(seed),
            adapters: BTreeMap::new(),
            adapter_bytes: 0,
            attached: 0,
            parted: BTreeMap::new(),
            asked_for: BTreeMap::new(),
        }
    }

    pub(super) fn find(&self, owners: &Owners, id: &str) -> Option<u32> {
        let is_it = |client| owners[self.records[client].owner].name.as_deref() == Some(id);
        self.by_id.find(self.by_id.hash(id.as_bytes()), is_it)
    }

    /// Makes a client with this id, which no other has. It is away, and nothing runs.
    pub(super) fn insert(
        &mut self,
        owners: &mut Owners,
        id: &str,
        ttl: Millis,
        secret: SecretHash,
    ) -> u32 {
        let owner = owners.insert_client(id, self.records.next_index());
        let client = self.records.insert(Client {
            owner,
            ttl,
            secret,
            conns: Chain::new(),
            stalled: 0,
            told_with: 0,
            generation: 0,
            timer: None,
            undoing: Undoing::Nothing,
            recording: None,
            detached_by: None,
        });
        self.by_id.insert(self.by_id.hash(id.as_bytes()), client);
        let adapter = adapter_of(id);
        match self.adapters.get_mut(adapter) {
            Some(clients) => *clients += 1,
            None => {
                self.adapter_bytes += adapter_bytes(adapter);
                self.adapters.insert(adapter.into(), 1);
            }
        }
        client
    }

    pub(super) fn remove(&mut self, client: u32, id: &str) {
        self.records.remove(client);
        self.by_id.remove(self.by_id.hash(id.as_bytes()), client);
        let adapter = adapter_of(id);
        if let Some(clients) = self.adapters.get_mut(adapter) {
            *clients -= 1;
            if *clients == 0 {
                self.adapters.remove(adapter);
                self.adapter_bytes -= adapter_bytes(adapter);
            }
        }
    }

    /// Whether another client of this id may come; 0 is no limit.
    fn has_room(&self, id: &str, per_adapter_max: u32) -> bool {
        match self.adapters.get(adapter_of(id)) {
            Some(&clients) => per_adapter_max == 0 || clients < per_adapter_max,
            None => self.adapters.len() < ADAPTERS_MAX,
        }
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
        self.records.memory() + self.by_id.memory() + self.adapter_bytes + parted + asked_for
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
                cx.attach(conn, client, is_new);
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
        self.stop_timer(client);
    }

    /// The connection is its own owner again; returns its client.
    pub(super) fn part(&mut self, conn: ConnIndex) -> u32 {
        if self.conns[conn].stalled {
            self.count_stalled(conn, false);
        }
        let it = &mut self.conns[conn];
        let client = self.owners[it.owner].client;
        it.owner = it.own;
        let conns = &mut self.clients[client].conns;
        conns.unlink(self.conns.records_mut(), conn.0);
        let was_last = conns.is_empty();
        self.clients.attached -= usize::from(was_last);
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
    /// The connection acquires for this client from now on, if it does not already.
    fn attach(&mut self, conn: ConnIndex, client: u32, is_new: bool) {
        if self.core.client_of(conn).is_none() {
            let it = &mut self.core.clients[client];
            if !is_new && it.conns.is_empty() {
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
        self.set_ttl(client, attach.ttl)?;
        Ok(Some((client, false)))
    }

    /// The order is that of all requests: the disk first, memory last.
    fn add_client(&mut self, attach: Attach<'_>) -> Result<u32, Refusal> {
        let Attach { id, ttl, secret } = attach;
        let core = &mut *self.core;
        let per_adapter_max = core.rules.clients_per_adapter_max;
        if core.storage_full && ttl > Millis::ZERO {
            return Err(Refusal::Storage);
        } else if core.draining {
            return Err(Refusal::Draining);
        } else if !core.clients.has_room(id, per_adapter_max) {
            return Err(Refusal::MaxClients);
        } else if core.memory_full {
            return Err(Refusal::Memory);
        }
        let secret = SecretHash::new(core.fences.next_salt(), secret);
        let client = core.clients.insert(&mut core.owners, id, ttl, secret);
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
        let of_adapters: u32 = self.clients.adapters.values().sum();
        assert_eq!(of_adapters as usize, self.clients.len(), "of adapters");
        let (mut attached, mut with_conn) = (0, 0);
        for (client, it) in self.clients.iter() {
            let owner = &self.owners[it.owner];
            assert_eq!(owner.client, client, "an owner of another client");
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
        let with_timer = self.clients.iter().filter(|(_, it)| it.timer.is_some());
        with_timer.count()
    }
}
