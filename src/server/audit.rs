//! What operators do, told in the log: one line each, of one shape, whatever `--log-level` says.
//!
//! `audit action=break client=#7 name=oncall address=127.0.0.1:50312 key=job fence=*`: what was asked
//! for, by whom, from where, and about what. In JSON these are members beside `"target":"audit"` and
//! `"msg":"audit"`. A line is written when it is asked for and before it is done, so that nothing is
//! done without one. Whatever came from a peer is the value of a field, which the logger escapes.

use log::kv::Value;
use log::{Level, Record};

/// Where these lines come from, for filters.
pub const TARGET: &str = "audit";

/// Somebody who asks for what only operators should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    /// The id of a client, or the number of a connection.
    pub client: String,
    /// The name that was given in `hello`; empty if none was.
    pub name: String,
    /// Where it comes from; empty if that is not known.
    pub address: String,
}

/// Tells that somebody asks for something. `about` is what it concerns, by name.
pub fn tell(action: &str, operator: &Operator, about: &[(&str, &str)]) {
    let who = [
        ("action", action),
        ("client", &operator.client),
        ("name", &operator.name),
        ("address", &operator.address),
    ];
    let fields: Vec<(&str, Value<'_>)> = { who.iter().chain(about) }
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
