//! Signals: a word to everyone who listens now, and to nobody later.
//!
//! Also how any subscription begins and ends, since listening, watching and observing differ only
//! in what is heard.

use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::pattern;
use super::subscriptions::Topic;
use super::types::{Effect, Push, Refusal, Reply, Value};

/// The answer counts those who are told, not those who should have been.
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

/// Subscribes. A second time is as good as the first, also when there is no room for more.
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
    let (subscriptions, conns) = (&mut cx.subscriptions[topic as usize], &mut *cx.conns);
    if !subscriptions.is_subscribed(conn, pattern, group) {
        let subscriptions_max = cx.rules.subscriptions_max;
        if subscriptions_max != 0 && conns[conn].subscription_count() >= subscriptions_max {
            return cx.refuse(conn, Refusal::MaxSubscriptions);
        }
        subscriptions.join(conns, conn, pattern, group);
    }
    cx.reply(conn, Reply::Done);
}

/// Ends a subscription. Not having had it is no reason to complain, also if nobody can have it.
pub(super) fn unsubscribe(
    cx: &mut Ctx<'_>,
    topic: Topic,
    conn: ConnIndex,
    pattern: &[u8],
    group: &[u8],
) {
    cx.subscriptions[topic as usize].leave(cx.conns, conn, pattern, group);
    cx.reply(conn, Reply::Done);
}

/// Leaders are observed by name, in which a star is a star; the others by pattern.
fn is_sound(topic: Topic, pattern: &[u8]) -> bool {
    topic == Topic::Observe || pattern::is_valid(pattern)
}
