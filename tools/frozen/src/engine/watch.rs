//! Watches: the clients that watch a key are told what happened to it.
//!
//! The primitives announce what they did. While no key is watched, nothing is computed.

use super::ctx::Ctx;
use super::subscriptions::Topic;
use super::types::{Effect, Event, Push};
use crate::key::Key;

impl Ctx<'_> {
    /// Tells the watchers of a key what happened to it.
    pub(super) fn announce(&mut self, event: Event, key: &[u8]) {
        if !self.is_watched() {
            return;
        }
        let recipients = self.recipients(Topic::Watch, key, None);
        if !recipients.is_empty() {
            let key = Key::from(key);
            self.out
                .push(Effect::Broadcast(recipients, Push::Watch { event, key }));
        }
    }

    /// Whether any client watches any key.
    pub(super) fn is_watched(&self) -> bool {
        !self.core.subscriptions[Topic::Watch as usize].is_empty()
    }
}
