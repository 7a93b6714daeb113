//! Signals: a payload for all clients that listen now; a client that listens later does not get it.
//!
//! Also how any subscription begins and ends, because `listen`, `watch` and `observe` differ only
//! in what is pushed. `subscriptions.rs` finds the recipients.

use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::pattern;
use super::subscriptions::{Room, Topic};
use super::types::{Effect, Push, Refusal, Reply, Value};

/// The answer counts the connections that the signal is sent to. Those that match but cannot take
/// more are not counted.
pub(super) fn signal(cx: &mut Ctx<'_>, conn: ConnIndex, channel: &[u8], payload: &[u8]) {
    let recipients = cx.recipients(Topic::Listen, channel, None);
    cx.reply(conn, Reply::Number(recipients.len() as i64));
    if !recipients.is_empty() {
        let (channel, payload) = (Value::from(channel), Value::from(payload));
        cx.out.push(Effect::Broadcast(
            recipients,
            Push::Signal { channel, payload },
        ));
    }
}

/// Subscribes. To subscribe to the same again is no error, also when there is no room for more.
pub(super) fn subscribe(
    cx: &mut Ctx<'_>,
    topic: Topic,
    conn: ConnIndex,
    pattern: &[u8],
    group: &[u8],
) {
    if !is_sound(topic, pattern) {
        return cx.refuse(conn, Refusal::BadPattern);
    }
    let (subscriptions, conns) = (
        &mut cx.core.subscriptions[topic as usize],
        &mut cx.core.conns,
    );
    let room = Room {
        subscriptions_max: cx.core.rules.subscriptions_max,
        memory_full: cx.core.memory_full,
    };
    match subscriptions.join(conns, conn, pattern, group, room) {
        Ok(()) => cx.reply(conn, Reply::Done),
        Err(refusal) => cx.refuse(conn, refusal),
    }
}

/// Ends a subscription. It is no error if there is none, also if the pattern is not valid.
pub(super) fn unsubscribe(
    cx: &mut Ctx<'_>,
    topic: Topic,
    conn: ConnIndex,
    pattern: &[u8],
    group: &[u8],
) {
    cx.core.subscriptions[topic as usize].leave(&mut cx.core.conns, conn, pattern, group);
    cx.reply(conn, Reply::Done);
}

/// Listeners and watchers give a pattern; observers give a name, in which a star is only a star.
fn is_sound(topic: Topic, pattern: &[u8]) -> bool {
    topic == Topic::Observe || pattern::is_valid(pattern)
}
