//! What operators do, and what somebody may not: told in the log, with who it was and from where.
//!
//! Every line here has the target `latchd::audit`. Whoever asks for what its token does not give can do so as
//! fast as it likes, so only the first of these in a second is told as it is, and how many followed it.

use log::warn;

use super::conn::Transport;
use super::{Due, Server};
use crate::base::{ConnId, Fence, Millis, Nanos};
use crate::engine::types::Span;
use crate::store::Store;
use crate::timers::TimerId;
use crate::wire::need::Subject;

const TARGET: &str = "latchd::audit";

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

/// Somebody who asks for what only operators should: by the id of a client or the number of a
/// connection, by the name that was given in `hello`, as whom it was let in, and by where it comes from.
struct Operator {
    client: String,
    name: String,
    user: String,
    address: String,
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Who asks on this connection.
    fn operator(&self, now: Nanos, id: ConnId) -> Operator {
        let asked = self.engine.view(now).conn(id);
        Operator {
            client: match asked.client {
                Some(client) => client.escape_debug().to_string(),
                None => format!("#{}", id.serial),
            },
            name: asked.name.unwrap_or_default().to_owned(),
            user: asked.user.unwrap_or_default().to_owned(),
            address: self.address_of(id).unwrap_or_default(),
        }
    }

    /// Somebody asks to end grants of a key: one of them, or all.
    pub(super) fn audit_break(&self, now: Nanos, id: ConnId, key: &[u8], fence: Option<Fence>) {
        let Operator {
            client,
            name,
            user,
            address,
        } = self.operator(now, id);
        let key = key.escape_ascii().to_string();
        let fence = fence.map_or_else(|| "*".to_owned(), |fence| fence.to_string());
        warn!(
            target: TARGET, key, fence, client, name, user, address;
            "an operator asks to break what is held"
        );
    }

    /// Somebody asks to end range locks of a resource: those that overlap some bytes, or all.
    pub(super) fn audit_break_ranges(
        &self,
        now: Nanos,
        id: ConnId,
        resource: &[u8],
        span: Option<Span>,
    ) {
        let Operator {
            client,
            name,
            user,
            address,
        } = self.operator(now, id);
        let resource = resource.escape_ascii().to_string();
        let range = span.map_or_else(
            || "*".to_owned(),
            |span| format!("{} {}", span.start, span.len),
        );
        warn!(
            target: TARGET, resource, range, client, name, user, address;
            "an operator asks to break range locks"
        );
    }

    /// Somebody asks to end the grace period.
    pub(super) fn audit_grace_end(&self, now: Nanos, id: ConnId) {
        let Operator {
            client,
            name,
            user,
            address,
        } = self.operator(now, id);
        warn!(
            target: TARGET, client, name, user, address;
            "an operator asks to end the grace period"
        );
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
        let Operator {
            client,
            name,
            user,
            address,
        } = self.operator(now, id);
        let key = match subject {
            Subject::Nothing => String::new(),
            Subject::Name(it) | Subject::Names(it, _) | Subject::Pattern(it) => {
                it.escape_ascii().to_string()
            }
        };
        warn!(
            target: TARGET, what, key, client, name, user, address;
            "forbidden: the token does not give this"
        );
    }

    /// Tells how many more there were.
    pub(super) fn tell_forbidden(&mut self, now: Nanos) {
        let it = &mut self.forbidden;
        (it.timer, it.not_before) = (None, now.after(FORBIDDEN_EVERY));
        let more = std::mem::take(&mut it.untold);
        let plural = if more == 1 { "" } else { "s" };
        warn!(target: TARGET, "forbidden: {more} more request{plural} in the last second");
    }
}
