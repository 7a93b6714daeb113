//! All that records are kept of, as the shortest records that would bring it back: for the simulator, which
//! compares tables that were told the same.
//!
//! Nothing in it depends on who has the table, or on a clock: a grant of a connection belongs to nobody, since
//! it does so after a restart, and of a value it is said that its time ends, and not when.

use super::arena::NONE;
use super::lock::Locks;
use super::types::{ATTACHED_SERIAL, End, Record, Value};
use super::{Engine, Someone};
use crate::base::{Fence, Millis, Nanos};
use crate::key::Key;

impl Engine {
    /// What would bring all this back. Only tests and the simulator call it, because it walks over
    /// everything. In no order but that of the values of a list.
    #[must_use]
    pub fn image(&self) -> Vec<Record> {
        let upto = Fence(self.fences_reserved());
        let mut all = vec![Record::Fences { upto }];
        self.show_clients(&mut all);
        self.show_grants(&mut all);
        self.show_ranges(&mut all);
        self.show_entries(&mut all);
        all
    }

    fn show_clients(&self, all: &mut Vec<Record>) {
        let kept = self
            .core
            .clients
            .iter()
            .filter(|(_, it)| it.ttl > Millis::ZERO);
        all.extend(kept.map(|(_, it)| {
            let id = self.core.owners[it.owner].client_id().unwrap_or_default();
            Record::Client {
                id: id.as_bytes().into(),
                ttl: it.ttl,
                secret: it.secret,
            }
        }));
    }

    fn show_grants(&self, all: &mut Vec<Record>) {
        let Locks {
            holders,
            table,
            recorded,
            asks,
            ..
        } = &self.stores.locks;
        all.extend(holders.iter().map(|(holder, it)| {
            let owner = &self.core.owners[it.owner];
            // One that was forgotten and left something is not the one that has come since under its id.
            let is_known = owner.client != NONE;
            let client = owner
                .client_id()
                .filter(|id| is_known && self.core.is_kept(id));
            let named = owner.called().filter(|_| owner.is_named());
            Record::Granted {
                key: table[it.resource].key.clone(),
                mode: table[it.resource].kind().mode(it.held()),
                token: it.token,
                lease: recorded[holder].kept(),
                client: client.map_or(0, |_| ATTACHED_SERIAL),
                name: client.or(named).map(Box::from),
                request: asks.request(holder).unwrap_or_default().into(),
            }
        }));
    }

    fn show_ranges(&self, all: &mut Vec<Record>) {
        let view = self.view(Nanos(0));
        for it in view.resources_from(0).filter_map(|(_, it)| it) {
            for shown in it.held() {
                let Someone::Named(client) = shown.client else {
                    continue;
                };
                if self.core.is_kept(client) {
                    all.push(Record::Ranged {
                        resource: it.key().into(),
                        client: client.as_bytes().into(),
                        owner: shown.owner.into(),
                        range: shown.range,
                        mode: Some(shown.mode),
                        grant: shown.grant.unwrap_or_default(),
                    });
                }
            }
        }
    }

    fn show_entries(&self, all: &mut Vec<Record>) {
        let counters = self.stores.counters.named.iter();
        let counters = counters.filter(|it| it.value != 0);
        all.extend(counters.map(|it| Record::Counted {
            key: it.key.clone(),
            value: it.value,
        }));
        all.extend(self.stores.kv.named.iter().map(|it| Record::Stored {
            key: it.key.clone(),
            value: it.value.value.clone(),
            ends: it.value.timer.map(|_| Nanos(0)),
        }));
        for it in self.stores.lists.named.iter() {
            let push = |value: &Value| Record::Pushed {
                key: Key::clone(&it.key),
                end: End::Right,
                value: value.clone(),
            };
            all.extend(it.value.values.iter().map(push));
        }
    }
}
