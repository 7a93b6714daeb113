//! A stream of what changes in a range of keys, from a revision on.
//!
//! It can end at any time and then has to be begun anew; it can also fall silent without ending, when
//! its member is cut off or stopped, so whoever watches has to ask besides.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use super::endpoints::Endpoints;
use super::http::{Connection, Request, Response};
use super::login::Token;
use super::parse::Value;
use super::stream::now;
use super::{Gateway, Kv, Trouble, json};

/// A longer line is not believed: it would be thousands of entries.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Something has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was stored.
    Put(Kv),
    /// A key is gone; only the key and the revision are told.
    Delete(Kv),
}

/// What a watch has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// This has changed, all of it at one time.
    Changed(Vec<Event>),
    /// Nothing, within the time.
    Nothing,
}

/// A stream of what changes.
pub struct Watch {
    connection: Connection,
    /// What it was begun with, and where that came from: etcd may say later that it does not do.
    token: Option<Token>,
    endpoints: Endpoints,
    /// What was received of a line that is not complete.
    partial: Vec<u8>,
    lines: VecDeque<Vec<u8>>,
}

impl Watch {
    /// Begins to watch the keys from `key` to before `end`, and everything that has changed since
    /// `from_revision`. The connection is one of its own; to open it is not part of `within`.
    ///
    /// # Errors
    /// No member can be reached or takes the watch.
    pub fn begin(
        gateway: &mut Gateway,
        key: &[u8],
        end: &[u8],
        from_revision: u64,
        within: Duration,
    ) -> Result<Self, Trouble> {
        let mut connection = gateway.connect(within)?;
        let token = gateway.token(&mut connection, within)?;
        let deadline = now() + within;
        let body = json::watch(key, end, from_revision);
        let request = Request::post("/v3/watch", &body).with(token.as_ref());
        let begun = connection
            .send(&request, deadline)
            .and_then(|()| connection.begin_stream(deadline));
        match begun {
            Ok(None) => Ok(Self {
                connection,
                token,
                endpoints: gateway.endpoints().clone(),
                partial: Vec::new(),
                lines: VecDeque::new(),
            }),
            Ok(Some(Response { status, body, .. })) => {
                let trouble = match Value::parse(&body) {
                    Ok(parsed) => json::trouble(&parsed, status),
                    Err(_) => Trouble::Unanswered(format!("a watch is answered {status}")),
                };
                gateway.endpoints().note(&trouble, token.as_ref());
                gateway.rotate();
                Err(trouble)
            }
            Err(error) => {
                gateway.rotate();
                Err(Trouble::Unanswered(error.to_string()))
            }
        }
    }

    /// Waits for the next change, for no longer than this.
    ///
    /// # Errors
    /// The watch is over. [`Trouble::Compacted`]: what has changed since cannot be had any more.
    pub fn next(&mut self, within: Duration) -> Result<Watched, Trouble> {
        let deadline = now() + within;
        loop {
            while let Some(line) = self.lines.pop_front() {
                let events = events(&line).inspect_err(|trouble| {
                    self.endpoints.note(trouble, self.token.as_ref());
                })?;
                if !events.is_empty() {
                    return Ok(Watched::Changed(events));
                }
            }
            match self.connection.chunk(deadline) {
                Ok(Some(chunk)) => {
                    self.connection.forget_read();
                    for byte in chunk {
                        match byte {
                            b'\n' => self.lines.push_back(std::mem::take(&mut self.partial)),
                            byte => self.partial.push(byte),
                        }
                    }
                    if self.partial.len() > LINE_BYTES_MAX {
                        return Err(Trouble::Garbled("a line without an end".to_owned()));
                    }
                }
                Ok(None) => return Err(Trouble::Unanswered("the watch has ended".to_owned())),
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(Watched::Nothing),
                Err(error) => return Err(Trouble::Unanswered(error.to_string())),
            }
        }
    }
}

/// What a line of the stream says.
fn events(line: &[u8]) -> Result<Vec<Event>, Trouble> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let parsed = Value::parse(line).map_err(|why| Trouble::Garbled(why.to_owned()))?;
    if parsed.has("error") {
        return Err(json::trouble(&parsed, 200));
    }
    let result = parsed.at("result");
    if json::number(result, "compact_revision")? > 0 {
        return Err(Trouble::Compacted);
    }
    if result.at("canceled").is_true() {
        let why = result.at("cancel_reason").text();
        return Err(json::of_message(
            why.unwrap_or("the watch was cancelled"),
            200,
        ));
    }
    let events = result.at("events").elements();
    let event = |event: &Value| {
        let kv = json::read_kv(event.at("kv"))?;
        match event.at("type").text() {
            None | Some("PUT") => Ok(Event::Put(kv)),
            Some("DELETE") => Ok(Event::Delete(kv)),
            Some(other) => Err(Trouble::Garbled(format!("an event {other:?}"))),
        }
    };
    events.iter().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_says() {
        let created = br#"{"result":{"header":{"revision":"3"},"created":true}}"#;
        assert_eq!(events(created), Ok(Vec::new()));
        let changed = br#"{"result":{"header":{"revision":"5"},"events":[
            {"kv":{"key":"aw==","create_revision":"4","mod_revision":"4","value":"dg=="}},
            {"type":"DELETE","kv":{"key":"bA==","mod_revision":"5"}}]}}"#;
        let put = Kv {
            key: b"k".to_vec(),
            value: b"v".to_vec(),
            created: 4,
            modified: 4,
        };
        let gone = Kv {
            key: b"l".to_vec(),
            modified: 5,
            ..Kv::default()
        };
        let both = vec![Event::Put(put), Event::Delete(gone)];
        assert_eq!(events(changed), Ok(both));
        let compacted = br#"{"result":{"header":{},"canceled":true,"compact_revision":"9"}}"#;
        assert_eq!(events(compacted), Err(Trouble::Compacted));
        assert!(events(br#"{"result":{"canceled":true}}"#).is_err());
        let refused = br#"{"result":{"canceled":true,"created":true,
            "cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#;
        assert!(matches!(events(refused), Err(Trouble::BadToken(_))));
        let refused = br#"{"result":{"canceled":true,
            "cancel_reason":"rpc error: code = PermissionDenied desc = etcdserver: permission denied"}}"#;
        assert!(matches!(events(refused), Err(Trouble::Forbidden(_))));
        assert!(events(br#"{"error":{"message":"x"}}"#).is_err());
        assert!(events(b"{").is_err());
    }
}
