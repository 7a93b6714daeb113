//! Two-phase acquire: take a ticket for the queue now, wait for it later.
//!
//! | ticket            | what happens             | ticket then | answer                          |
//! |-------------------|--------------------------|-------------|---------------------------------|
//! | –                 | `e`, the key is free     | HELD        | "acquired"                      |
//! | –                 | `e`, the key is not free | QUEUED      | "queued"                        |
//! | QUEUED            | the key is granted       | HELD        | none yet: the next `w` gets it  |
//! | QUEUED, `w` waits | the key is granted       | –           | "ok"                            |
//! | QUEUED, `w` waits | the wait is over         | –           | "timeout"                       |
//! | HELD              | `w`                      | –           | "ok", and the full lease starts |
//! | HELD              | the lease ends           | EXPIRED     | none yet: the next `w` gets it  |
//! | HELD              | `n` finds the lease over | –           | "error_lease_expired"           |
//! | EXPIRED           | `w`                      | –           | "error_lease_expired"           |
//! | EXPIRED           | `e`                      | as without  | as without                      |
//! | EXPIRED           | no `w` for a while¹      | –           |                                 |
//!
//! ¹ As long as an idle key is remembered, at least a minute.
//!
//! A ticket belongs to one owner and one key. It also ends when its grant is released, by any
//! client that has the token, and with its owner. Decisions about keys, waiters and grants are in
//! `lock.rs`.

use std::ops::Index;

use super::arena::{Arena, Chain, Link, Linked, NONE, Stored};
use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::due::Due;
use super::holder::Held;
use super::lock::{Locks, Opened, deny};
use super::owner::OwnerIndex;
use super::queue::Want;
use super::types::{Mode, Refusal, Reply};
use crate::base::Millis;
use crate::keymap::KeyMap;
use crate::timers::TimerId;

/// How long at least a ticket is remembered after its lease has ended; as long as an idle key, if
/// that is longer.
const EXPIRED_KEPT_MIN: Millis = Millis::from_secs(60);

/// One owner's enqueue for one key.
pub(super) struct Ticket {
    pub(super) owner: OwnerIndex,
    pub(super) resource: u32,
    /// The lease that was asked for. It starts again when `w` returns the grant.
    pub(super) lease: Millis,
    pub(super) standing: Standing,
    link: Link,
}

impl Stored for Ticket {}

/// How far an enqueue has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// In the queue, as this waiter.
    Queued(u32),
    /// Granted, as this holder.
    Held(u32),
    /// Granted, and the lease ended before the client asked with `w`. The ticket is forgotten when
    /// this timer fires, because a client that never asks must not keep the key, nor its
    /// connection, for ever.
    Expired(TimerId),
}

/// The chain of an owner's tickets.
pub(super) struct TicketsOfOwner;

impl Linked<TicketsOfOwner> for Ticket {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// All tickets, found by owner and key.
pub(super) struct Tickets {
    arena: Arena<Ticket>,
    index: KeyMap,
}

impl Tickets {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            arena: Arena::new(),
            index: KeyMap::new(seed),
        }
    }

    pub(super) fn find(&self, owner: OwnerIndex, resource: u32) -> Option<u32> {
        if self.arena.is_empty() {
            return None;
        }
        self.index.find(self.hash(owner, resource), |ticket| {
            let it = &self.arena[ticket];
            it.owner == owner && it.resource == resource
        })
    }

    /// The waiter of this ticket, while it is in the queue.
    pub(super) fn waiter(&self, ticket: u32) -> Option<u32> {
        match self.arena[ticket].standing {
            Standing::Queued(waiter) => Some(waiter),
            Standing::Held(_) | Standing::Expired(_) => None,
        }
    }

    pub(super) fn hold(&mut self, ticket: u32, holder: u32) {
        self.arena[ticket].standing = Standing::Held(holder);
    }

    /// The lease of the ticket's grant ended before a `w` came.
    pub(super) fn expire(&mut self, cx: &mut Ctx<'_>, ticket: u32) {
        let until = cx
            .now
            .after(cx.core.rules.gc_idle_max.max(EXPIRED_KEPT_MIN));
        let owner = self.arena[ticket].owner;
        let timer = cx.core.timers.arm(owner.0, until, Due::ticket(ticket));
        cx.core.owners[owner].tickets_expired += 1;
        self.arena[ticket].standing = Standing::Expired(timer);
    }

    /// The ticket becomes the last of its owner's.
    pub(super) fn move_back(&mut self, tickets: &mut Chain<TicketsOfOwner>, ticket: u32) {
        tickets.unlink(&mut self.arena, ticket);
        tickets.push_back(&mut self.arena, ticket);
    }

    /// How many expired tickets an owner has, counted one by one; for checks.
    pub(super) fn expired_count(&self, tickets: &Chain<TicketsOfOwner>) -> usize {
        let is_expired = |it: &u32| matches!(self.arena[*it].standing, Standing::Expired(_));
        tickets.iter(&self.arena).filter(is_expired).count()
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.arena.tidy()
    }

    pub(super) fn memory(&self) -> usize {
        self.arena.memory() + self.index.memory()
    }

    pub(super) fn has_vacancy(&self) -> bool {
        self.arena.has_vacancy()
    }

    pub(super) fn len(&self) -> usize {
        self.arena.len()
    }

    fn hash(&self, owner: OwnerIndex, resource: u32) -> u32 {
        self.index
            .hash(&(u64::from(owner.0) << 32 | u64::from(resource)).to_le_bytes())
    }
}

impl Index<u32> for Tickets {
    type Output = Ticket;

    fn index(&self, ticket: u32) -> &Ticket {
        &self.arena[ticket]
    }
}

impl Locks {
    pub(super) fn enqueue(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        mode: Mode,
        lease: Millis,
    ) {
        if let Some(resource) = self.find(key)
            && let Some((ticket, is_current)) = self.current_ticket(cx, asker.owner, resource)
        {
            match self.tickets[ticket].standing {
                Standing::Expired(_) => self.remove_ticket(cx, ticket),
                Standing::Held(holder) if !is_current && self.is_over(cx, holder) => {
                    return cx.put_off(asker.conn);
                }
                Standing::Queued(_) | Standing::Held(_) => {
                    return cx.refuse(asker.conn, Refusal::AlreadyEnqueued);
                }
            }
            self.mark_idle(cx, resource);
        }
        let Opened {
            resource,
            is_current,
        } = match self.open(cx, key, mode) {
            Ok(opened) => opened,
            Err(refusal) => return deny(cx, asker.conn, key, mode, refusal),
        };
        let held = Held::of(mode);
        let is_free = self.is_free(resource, held);
        if cx.core.memory_full && !self.has_room_for_ticket(cx, is_free) {
            // A queue that is full is said to be full, whether or not there is memory.
            let is_queue_full = !is_free && self.is_queue_full(cx, resource);
            let why = if is_queue_full {
                Refusal::MaxWaiters
            } else {
                Refusal::Memory
            };
            deny(cx, asker.conn, key, mode, why);
        } else if is_free {
            let ticket = self.insert_ticket(cx, asker.owner, resource, lease);
            let token = self.grant(
                cx,
                resource,
                asker.owner,
                Want {
                    held,
                    lease,
                    ticket,
                },
            );
            if cx.core.keepers > 0 {
                self.keep_told(cx, ticket);
            }
            cx.reply(asker.conn, Reply::Acquired { token, lease });
            self.tell_of_grant(cx, resource, asker.conn, held);
        } else if !is_current {
            cx.put_off(asker.conn);
        } else if self.is_queue_full(cx, resource) {
            deny(cx, asker.conn, key, mode, Refusal::MaxWaiters);
        } else {
            let ticket = self.insert_ticket(cx, asker.owner, resource, lease);
            let waiter = self.join(
                cx,
                resource,
                asker.owner,
                Want {
                    held,
                    lease,
                    ticket,
                },
            );
            self.tickets.arena[ticket].standing = Standing::Queued(waiter);
            cx.reply(asker.conn, Reply::Queued);
        }
        self.mark_idle(cx, resource);
    }

    pub(super) fn wait(&mut self, cx: &mut Ctx<'_>, asker: Asker, key: &[u8], wait: Millis) {
        let Some(resource) = self.find(key) else {
            return cx.refuse(asker.conn, Refusal::NotEnqueued);
        };
        let Some((ticket, is_current)) = self.current_ticket(cx, asker.owner, resource) else {
            return cx.refuse(asker.conn, Refusal::NotEnqueued);
        };
        let leaves = wait == Millis::ZERO || cx.core.draining;
        match self.tickets[ticket].standing {
            Standing::Held(holder) if !is_current && self.is_over(cx, holder) => {
                cx.put_off(asker.conn);
            }
            // Another connection of the same client waits there.
            Standing::Queued(waiter) if cx.core.waiters[waiter].conn != ConnIndex::NONE => {
                cx.refuse(asker.conn, Refusal::NotEnqueued);
            }
            Standing::Queued(_) if !is_current && leaves => cx.put_off(asker.conn),
            Standing::Held(holder) => {
                let lease = self.tickets[ticket].lease;
                let token = self.holders[holder].token;
                let lease = self.restart_lease(cx, holder, lease);
                if cx.core.keepers > 0 {
                    self.keep_told(cx, ticket);
                }
                self.remove_ticket(cx, ticket);
                cx.reply(asker.conn, Reply::Granted { token, lease });
                self.tell_of_grant(cx, resource, asker.conn, self.holders[holder].held());
            }
            Standing::Expired(_) => {
                self.remove_ticket(cx, ticket);
                cx.refuse(asker.conn, Refusal::LeaseExpired);
            }
            Standing::Queued(waiter) if leaves => {
                self.give_up(cx, waiter);
                let draining = Reply::Refused(Refusal::Draining);
                cx.reply(
                    asker.conn,
                    if cx.core.draining {
                        draining
                    } else {
                        Reply::TimedOut
                    },
                );
                self.grant_waiting(cx, resource);
            }
            Standing::Queued(waiter) if cx.detects_deadlocks(asker.conn) => {
                self.park_unless_deadlock(cx, asker, waiter, wait);
            }
            Standing::Queued(waiter) => {
                cx.park(waiter, asker.conn, wait);
            }
        }
        self.mark_idle(cx, resource);
    }

    /// The owner's ticket for this key, once what is over there has ended, and what
    /// [`Locks::evict_expired`] returned. It can be gone by then: the client's wait on another
    /// connection was granted or timed out.
    fn current_ticket(
        &mut self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        resource: u32,
    ) -> Option<(u32, bool)> {
        self.tickets.find(owner, resource)?;
        let is_current = self.evict_expired(cx, resource);
        let ticket = self.tickets.find(owner, resource)?;
        Some((ticket, is_current))
    }

    /// Whether the lease of this holder is over, though it has not been ended yet.
    fn is_over(&self, cx: &Ctx<'_>, holder: u32) -> bool {
        cx.core.timers.deadline(self.holders[holder].timer) <= cx.moment
    }

    /// The timer of an expired ticket fired: no `w` has come.
    pub(super) fn ticket_forgotten(&mut self, cx: &mut Ctx<'_>, ticket: u32) {
        let resource = self.tickets[ticket].resource;
        self.remove_ticket(cx, ticket);
        self.mark_idle(cx, resource);
    }

    /// Whether there is room for a ticket with a grant, or with a waiter, in the memory that is
    /// there already.
    #[cold]
    fn has_room_for_ticket(&self, cx: &Ctx<'_>, is_granted: bool) -> bool {
        let has_room = if is_granted {
            self.holders.has_vacancy()
        } else {
            cx.core.waiters.has_vacancy()
        };
        has_room && self.tickets.has_vacancy()
    }

    fn insert_ticket(
        &mut self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        resource: u32,
        lease: Millis,
    ) -> u32 {
        let standing = Standing::Queued(NONE); // the caller sets the real one at once
        let ticket = Ticket {
            owner,
            resource,
            lease,
            standing,
            link: Link::OUT,
        };
        let ticket = self.tickets.arena.insert(ticket);
        self.tickets
            .index
            .insert(self.tickets.hash(owner, resource), ticket);
        cx.core.owners[owner]
            .tickets
            .push_back(&mut self.tickets.arena, ticket);
        self.table[resource].tickets += 1;
        ticket
    }

    /// Forgets a ticket. Its grant, if there is one, stays with the owner.
    pub(super) fn remove_ticket(&mut self, cx: &mut Ctx<'_>, ticket: u32) {
        let Ticket {
            owner,
            resource,
            standing,
            ..
        } = self.tickets[ticket];
        match standing {
            Standing::Queued(_) => {}
            Standing::Held(holder) => self.holders[holder].ticket = NONE,
            Standing::Expired(timer) => {
                cx.core.timers.cancel(owner.0, timer);
                cx.core.owners[owner].tickets_expired -= 1;
            }
        }
        cx.core.owners[owner]
            .tickets
            .unlink(&mut self.tickets.arena, ticket);
        self.tickets
            .index
            .remove(self.tickets.hash(owner, resource), ticket);
        self.tickets.arena.remove(ticket);
        self.table[resource].tickets -= 1;
    }
}
