//! Watches: what happened to which key, told to whoever watches it.
//!
//! The primitives announce what they did; nothing is computed while nobody watches.

use super::audience::Ear;
use super::ctx::Ctx;
use super::types::{Effect, Event, Push};
use crate::key::Key;

impl Ctx<'_> {
    /// Tells the watchers of a key what happened to it.
    pub(super) fn announce(&mut self, event: Event, key: &[u8]) {
        if !self.is_watched() {
            return;
        }
        let hearers = self.hearers(Ear::Watch, key, None);
        if !hearers.is_empty() {
            let key = Key::from(key);
            self.out
                .push(Effect::Cast(hearers, Push::Watch { event, key }));
        }
    }

    /// Whether anybody watches anything.
    pub(super) fn is_watched(&self) -> bool {
        !self.audiences[Ear::Watch as usize].is_empty()
    }
}
