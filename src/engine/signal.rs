//! Signals: a word to everyone who listens now, and to nobody later.
//!
//! Also how any seat is taken and given up, since listening, watching and observing differ only in
//! what is heard.

use super::audience::Ear;
use super::ctx::Ctx;
use super::pattern;
use super::types::{Effect, Push, Refusal, Reply, Value};

/// The answer counts those who are told, not those who should have been.
pub(super) fn signal(cx: &mut Ctx<'_>, client: u32, channel: &[u8], payload: &[u8]) {
    let hearers = cx.hearers(Ear::Listen, channel, None);
    cx.reply(client, Reply::Number(hearers.len() as i64));
    if !hearers.is_empty() {
        let (channel, payload) = (Value::from(channel), Value::from(payload));
        cx.out
            .push(Effect::Cast(hearers, Push::Signal { channel, payload }));
    }
}

/// Takes a seat. A second time is as good as the first, also when there is no room for more.
pub(super) fn subscribe(cx: &mut Ctx<'_>, ear: Ear, client: u32, pattern: &[u8], group: &[u8]) {
    if !is_sound(ear, pattern) {
        return cx.refuse(client, Refusal::BadPattern);
    }
    let (audience, clients) = (&mut cx.audiences[ear as usize], &mut *cx.clients);
    if !audience.has_seat(client, pattern, group) {
        let subscriptions_max = cx.rules.subscriptions_max;
        if subscriptions_max != 0 && clients[client].seat_count() >= subscriptions_max {
            return cx.refuse(client, Refusal::MaxSubscriptions);
        }
        audience.join(clients, client, pattern, group);
    }
    cx.reply(client, Reply::Done);
}

/// Gives a seat up. Not having had it is no reason to complain, unless nobody could have.
pub(super) fn unsubscribe(cx: &mut Ctx<'_>, ear: Ear, client: u32, pattern: &[u8], group: &[u8]) {
    if !is_sound(ear, pattern) {
        return cx.refuse(client, Refusal::BadPattern);
    }
    cx.audiences[ear as usize].leave(cx.clients, client, pattern, group);
    cx.reply(client, Reply::Done);
}

/// Leaders are observed by name, in which a star is a star; the others by pattern.
fn is_sound(ear: Ear, pattern: &[u8]) -> bool {
    ear == Ear::Observe || pattern::is_valid(pattern)
}
