//! How locks of bytes end otherwise than by an unlock: with their session, or by an operator.
//!
//! The locks of a session end with it, the first eight immediately and the rest when time passes. A
//! break by an operator is one step: nothing is granted before all locks that it names have ended.

use latchd::base::ConnId;
use latchd::engine::types::{ByteRange, Effect, Loss, Note, NoteOf, Noted, Push, Refusal, Reply};
use latchd::key::Key;

use super::Owner;
use crate::{Kind, Model, Name, SessionId};

impl Model {
    /// Undoes the ranges of a session that leaves, `most` things at most; returns whether all are
    /// undone. An owner that waits is refused first.
    pub(crate) fn depart_ranges(&mut self, session: SessionId, most: &mut usize) -> bool {
        loop {
            let mut owners = self.ranges.owners.iter();
            let Some(it) = owners.find(|it| it.owner.session == session) else {
                return true;
            };
            if *most == 0 {
                return false;
            }
            *most -= 1;
            let owner = it.owner.clone();
            let resource = if let Some(waiter) = self.range_wait_of(&owner) {
                let resource = self.range_wait(waiter).resource.clone();
                self.about = Some(resource.clone());
                self.end_range_wait(waiter, Reply::Refused(Refusal::Detached));
                resource
            } else {
                let (resource, own) = it.holdings[0].clone();
                self.about = Some(resource.clone());
                // Of very many segments only some at a time.
                let upto = own[own.len().min(64) - 1].range.last();
                let range = ByteRange::between(0, upto).expect("from the very first byte");
                self.clear_range(&owner, &resource, range);
                resource
            };
            self.serve_ranges(&resource);
        }
    }

    /// An operator ends range locks of a resource that overlap these bytes, or all of them.
    pub(crate) fn break_ranges(&mut self, conn: ConnId, resource: &[u8], range: Option<ByteRange>) {
        let range = range.unwrap_or(ByteRange::ALL);
        let broken = self.all_held();
        let broken = broken.filter(|it| it.1 == resource && it.2.range.overlaps(range));
        let broken = broken.map(|it| (it.0.clone(), it.1.clone(), it.2.range));
        let count = self.break_locks(conn, broken.collect());
        self.about = Some(resource.to_vec());
        self.reply(conn, Reply::Number(count));
        self.serve_ranges(resource);
    }

    /// An operator ends the range locks of a client.
    pub(crate) fn break_ranges_of(&mut self, conn: ConnId, client: &[u8]) {
        let is_its = |owner: &Owner| self.called_in_lists(owner.session).as_bytes() == client;
        let is_known = self.ranges.owners.iter().any(|it| is_its(&it.owner));
        let broken = self.all_held().filter(|it| is_its(it.0));
        let broken = broken
            .map(|it| (it.0.clone(), it.1.clone(), it.2.range))
            .collect();
        let count = self.break_locks(conn, broken);
        self.about = Some(client.to_vec());
        self.records.speak_of_all(&String::from_utf8_lossy(client));
        self.reply(conn, Reply::Number(count));
        // One queue is served now, and the others when time passes.
        for resource in self
            .ranges
            .to_serve
            .clone()
            .into_iter()
            .filter(|_| is_known)
        {
            let is_last = !self.queue_of(&resource).is_empty();
            self.about = Some(resource.clone());
            self.serve_ranges(&resource);
            if is_last {
                break;
            }
        }
    }

    /// All of these end, in the order that the engine chooses, before anything is granted.
    fn break_locks(&mut self, conn: ConnId, broken: Vec<(Owner, Name, ByteRange)>) -> i64 {
        self.meet(conn);
        let broken = broken.into_iter().map(|(owner, resource, range)| {
            let note = Effect::Note(Box::new(self.note_of_broken(&owner, &resource, range)));
            let place = self.seen.iter().position(|it| *it == note);
            (place, note, owner, resource, range)
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort_by_key(|it| it.0);
        for (_, note, owner, resource, range) in &broken {
            self.about = Some(resource.clone());
            self.clear_range(owner, resource, *range);
            self.tell_range_lost(owner, resource, *range, Loss::Broken);
            self.expect(note.clone());
        }
        broken.len() as i64
    }

    fn note_of_broken(&self, owner: &Owner, resource: &[u8], range: ByteRange) -> Note {
        let session = self.session(owner.session);
        let (conn, client) = match &session.kind {
            Kind::Conn(id) => (Some(*id), None),
            Kind::Client(_) => (None, session.name.as_deref()),
            Kind::Named | Kind::Nobody => (None, None),
        };
        Note {
            what: Noted::Broken,
            key: Key::from(resource),
            of: NoteOf::Range {
                range,
                owner: Key::from(&owner.name[..]),
            },
            conn,
            client: client.map(Into::into),
            owner: None,
            user: session.user.clone(),
        }
    }

    /// The client has lost a lock without asking for that: its connections that said `hello` are
    /// told.
    pub(super) fn tell_range_lost(
        &mut self,
        owner: &Owner,
        resource: &[u8],
        range: ByteRange,
        why: Loss,
    ) {
        let (resource, name) = (Key::from(resource), Key::from(&owner.name[..]));
        let lost = Push::RangeLost {
            resource,
            range,
            owner: name,
            why,
        };
        for conn in self.connections_of(owner.session) {
            if self.conn(conn).introduced {
                self.push(conn, lost.clone());
            }
        }
    }
}
