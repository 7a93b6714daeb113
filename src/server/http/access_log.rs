//! One line of the log for every answer over HTTP, if the operator wants them (`--access-log`).
//!
//! What is logged is gathered when the answer is made, and logged when it was handed to the system,
//! because only then is known how long it took. Names and owners are foreign bytes: they are values of
//! the line, which the logger escapes, and never a part of its text. At most 8
//! characters of a lease id or request id are logged: a whole lease id is enough for a release.

use log::kv::Value;
use log::{Level, Record};

use super::super::HttpSettings;
use super::figures::LeaseOp;
use crate::base::{Nanos, Token};
use crate::engine::types::Reply;
use crate::memory::block_bytes;
use crate::wire::http::Route;
use crate::wire::http::answer::Facts;
use crate::wire::http::context::Context;

/// Where these lines come from, for filters.
const TARGET: &str = "latchd::access";

/// Most that is logged of the id of a request.
const ID_CHARS_MAX: usize = 8;

/// An answer that is made and not yet sent.
pub(super) struct Finished {
    /// Which of the figures it belongs to.
    pub(super) op: Option<LeaseOp>,
    pub(super) asked_at: Nanos,
    /// It speaks of nothing later than this record.
    pub(super) record: u64,
    pub(super) status: u16,
    /// What to log, and who is at the other end.
    pub(super) line: Option<(Line, String)>,
}

/// What is logged of one answer.
pub(super) struct Line {
    op: &'static str,
    name: String,
    owner: String,
    request_id: String,
    /// Whether it was `acquired`, `renewed` or `released`.
    result: Option<(&'static str, bool)>,
    token: Option<Token>,
    current_owner: String,
}

/// What is to be logged, if anything is.
pub(super) fn line(settings: &HttpSettings, make: impl FnOnce() -> Line) -> Option<Line> {
    settings.access_log.then(make)
}

/// The first characters of a request id, which is ASCII.
fn beginning(id: &str) -> String {
    match id.get(..ID_CHARS_MAX) {
        Some(beginning) if id.len() > ID_CHARS_MAX => format!("{beginning}…"),
        _ => id.to_owned(),
    }
}

/// Of a request that is not about a lease.
pub(super) fn of_request(context: &Context<'_>) -> Line {
    Line {
        op: context.route.map_or("none", |route| match route {
            Route::AcquireLock => "acquire",
            Route::RenewLock => "renew",
            Route::ReleaseLock => "release",
            _ => route.row().operation,
        }),
        name: String::from_utf8_lossy(context.name).into_owned(),
        owner: context.owner.to_owned(),
        request_id: beginning(context.request_id),
        result: None,
        token: None,
        current_owner: String::new(),
    }
}

/// Of a request that the table has replied to.
pub(super) fn of_reply(context: &Context<'_>, reply: &Reply, facts: &Facts<'_>) -> Line {
    let word = match context.route {
        Some(Route::AcquireLock) => Some("acquired"),
        Some(Route::RenewLock) => Some("renewed"),
        Some(Route::ReleaseLock) => Some("released"),
        _ => None,
    };
    let is_done = matches!(
        reply,
        Reply::Granted { .. } | Reply::Renewed { .. } | Reply::Done
    );
    Line {
        result: word.map(|word| (word, is_done)),
        token: match reply {
            Reply::Granted { token, .. } => Some(*token),
            _ => None,
        },
        current_owner: facts.holder.map_or("", |it| it.owner).to_owned(),
        ..of_request(context)
    }
}

impl Finished {
    /// How many bytes it takes to know what to log.
    pub(super) fn line_bytes(&self) -> usize {
        let Some((line, peer)) = &self.line else {
            return 0;
        };
        let texts = [
            &line.name,
            &line.owner,
            &line.request_id,
            &line.current_owner,
            peer,
        ];
        texts.map(|text| block_bytes(text.capacity())).iter().sum()
    }

    /// Logs it, now that it is known how long it took.
    pub(super) fn log(&self, ns: u64) {
        let Some((line, peer)) = &self.line else {
            return;
        };
        let lease_id = line
            .token
            .map(|token| format!("{:08x}…", token.fence.0 >> 32));
        let mut fields: Vec<(&str, Value<'_>)> = vec![
            ("op", line.op.into()),
            ("lock", line.name.as_str().into()),
            ("owner", line.owner.as_str().into()),
        ];
        if let Some((word, is_done)) = line.result {
            fields.push((word, is_done.into()));
        }
        if let (Some(lease_id), Some(token)) = (&lease_id, line.token) {
            fields.push(("lease_id", lease_id.as_str().into()));
            fields.push(("token", token.fence.0.into()));
        }
        if !line.current_owner.is_empty() {
            fields.push(("cur_owner", line.current_owner.as_str().into()));
        }
        fields.push(("req_id", line.request_id.as_str().into()));
        fields.push(("status", u64::from(self.status).into()));
        fields.push(("peer", peer.as_str().into()));
        fields.push(("latency_ms", (ns as f64 / 1e6).into()));
        log::logger().log(
            &Record::builder()
                .level(Level::Info)
                .target(TARGET)
                .args(format_args!("http"))
                .key_values(&fields.as_slice())
                .build(),
        );
    }
}
