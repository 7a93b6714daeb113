//! What operators do, and what somebody may not: told in the log, one line each, of one shape, whatever
//! `--log-level` says.
//!
//! `audit action=break client=#7 name=oncall user=ops address=127.0.0.1:50312 key=job fence=*`: what was asked
//! for, by whom, from where, and about what. In JSON these are members beside `"target":"audit"` and
//! `"msg":"audit"`. A line is written when it is asked for and before it is done, so that nothing is
//! done without one. Whatever came from a peer is the value of a field, which the logger escapes.
//!
//! Whoever asks for what its token does not give can do so as fast as it likes, so only the first of these in
//! a second is told as it is, and how many followed it.

use log::kv::Value;
use log::{Level, Record};

use super::conn::Transport;
use super::{Due, Server};
use crate::base::{ConnId, Fence, Millis, Nanos};
use crate::engine::types::Span;
use crate::escape;
use crate::store::Store;
use crate::timers::TimerId;
use crate::wire::need::Subject;

/// Where these lines come from, for filters.
pub const TARGET: &str = "audit";

/// Least time between two lines about what somebody may not.
const FORBIDDEN_EVERY: Millis = Millis(1_000);

/// What was refused because a token does not give it.
#[derive(Default)]
pub(super) struct Forbidden {
    /// So far.
    total: u64,
    /// Since the last line.
    untold: u64,
    not_before: Nanos,
    /// Runs while something is untold.
    timer: Option<TimerId>,
}

impl Forbidden {
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// Somebody who asks for what only operators should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    /// The id of a client, or the number of a connection.
    pub client: String,
    /// The name that was given in `hello`; empty if none was.
    pub name: String,
    /// As whom it was let in, by the name of its token; empty if that has none.
    pub user: String,
    /// Where it comes from; empty if that is not known.
    pub address: String,
}

/// Tells that somebody asks for something. `about` is what it concerns, by name.
pub fn tell(action: &str, operator: &Operator, about: &[(&str, &str)]) {
    let who = [
        ("action", action),
        ("client", &operator.client),
        ("name", &operator.name),
        ("user", &operator.user),
        ("address", &operator.address),
    ];
    tell_fields(who.iter().chain(about));
}

fn tell_fields<'a>(fields: impl Iterator<Item = &'a (&'a str, &'a str)>) {
    let fields: Vec<(&str, Value<'_>)> = fields
        .map(|(name, text)| (*name, Value::from(*text)))
        .collect();
    log::logger().log(
        &Record::builder()
            .level(Level::Warn)
            .target(TARGET)
            .args(format_args!("audit"))
            .key_values(&fields.as_slice())
            .build(),
    );
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Who asks on this connection.
    fn operator(&self, now: Nanos, id: ConnId) -> Operator {
        let asked = self.engine.view(now).conn(id);
        Operator {
            client: match asked.client {
                Some(client) => client.to_owned(),
                None => format!("#{}", id.serial),
            },
            name: asked.name.unwrap_or_default().to_owned(),
            user: asked.user.unwrap_or_default().to_owned(),
            address: self.address_of(id).unwrap_or_default(),
        }
    }

    /// Somebody asks to end grants of a key: one of them, or all.
    pub(super) fn audit_break(&self, now: Nanos, id: ConnId, key: &[u8], fence: Option<Fence>) {
        let key = escape::bytes(key);
        let fence = fence.map_or_else(|| "*".to_owned(), |fence| fence.to_string());
        let about = [("key", key.as_str()), ("fence", fence.as_str())];
        tell("break", &self.operator(now, id), &about);
    }

    /// Somebody asks to end range locks of a resource: those that overlap some bytes, or all.
    pub(super) fn audit_break_ranges(
        &self,
        now: Nanos,
        id: ConnId,
        resource: &[u8],
        span: Option<Span>,
    ) {
        let resource = escape::bytes(resource);
        let range = span.map_or_else(
            || "*".to_owned(),
            |span| format!("{} {}", span.start, span.len),
        );
        let about = [("resource", resource.as_str()), ("range", range.as_str())];
        tell("break", &self.operator(now, id), &about);
    }

    /// An operator asks to end all range locks of a client.
    pub(super) fn audit_break_ranges_of(&self, now: Nanos, id: ConnId, client: &[u8]) {
        let of = escape::bytes(client);
        let about = [("of", of.as_str()), ("range", "*")];
        tell("break", &self.operator(now, id), &about);
    }

    /// Somebody asks to end the grace period.
    pub(super) fn audit_grace_end(&self, now: Nanos, id: ConnId) {
        tell("grace-end", &self.operator(now, id), &[]);
    }

    /// Somebody asks for what its token does not give.
    pub(super) fn audit_forbidden(
        &mut self,
        now: Nanos,
        id: ConnId,
        what: &str,
        subject: Subject<'_>,
    ) {
        self.forbidden.total += 1;
        if now < self.forbidden.not_before {
            self.forbidden.untold += 1;
            let Self {
                forbidden, timers, ..
            } = self;
            let at = forbidden.not_before;
            let arm = || timers.arm(at, Due::Forbidden);
            forbidden.timer.get_or_insert_with(arm);
            return;
        }
        self.forbidden.not_before = now.after(FORBIDDEN_EVERY);
        let key = match subject {
            Subject::Nothing => String::new(),
            Subject::Name(it) | Subject::Names(it, _) | Subject::Pattern(it) => escape::bytes(it),
        };
        let about = [("what", what), ("key", key.as_str())];
        tell("forbidden", &self.operator(now, id), &about);
    }

    /// Tells how many more there were.
    pub(super) fn tell_forbidden(&mut self, now: Nanos) {
        let it = &mut self.forbidden;
        (it.timer, it.not_before) = (None, now.after(FORBIDDEN_EVERY));
        let more = std::mem::take(&mut it.untold).to_string();
        tell_fields([("action", "forbidden"), ("more", more.as_str())].iter());
    }
}
