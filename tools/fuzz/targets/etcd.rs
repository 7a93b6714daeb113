//! Answers of etcd, through the door that a cluster uses: what latchd understands is what serde_json reads in them,
//! and what is no JSON is understood by neither.

#![no_main]

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use latchd::etcd::{
    Answer, Ask, Endpoints, Etcd, Event, Gateway, Get, Got, Kv, Op, Watch, Watched,
};
use libfuzzer_sys::fuzz_target;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// No call waits so long: each is answered at once.
const WITHIN: Duration = Duration::from_secs(60);

/// Deeper values are refused by latchd alone.
const DEPTH_MAX: usize = 32;

thread_local! {
    static PEER: RefCell<Peer> = RefCell::new(Peer::begin());
}

fuzz_target!(|input: &[u8]| {
    let [kind, framing, body @ ..] = input else {
        return;
    };
    let status = match framing % 8 {
        0 => 400,
        1 => 503,
        _ => 200,
    };
    let is_chunked = framing & 8 != 0;
    let said: Option<Value> = serde_json::from_slice(body).ok();
    let is_doubtful = said.is_some() && is_doubtful(body);
    let said = said.filter(|_| status == 200);
    PEER.with_borrow_mut(|peer| match kind % 8 {
        7 if !body.contains(&b'\n') => {
            let events = peer.watch(status, body);
            let judged = said.as_ref().and_then(judge_events);
            assert!(is_doubtful || events == judged, "{events:?}, {judged:?}");
        }
        kind => {
            let ask = ask(kind, status, body);
            let answer = peer.call(&ask, status, is_chunked, body);
            let judged = said.and_then(|said| judge(&ask, &said));
            assert!(is_doubtful || answer == judged, "{answer:?}, {judged:?}");
        }
    });
});

/// Whether the two readers may differ: about two members of one name, and about the depth.
fn is_doubtful(body: &[u8]) -> bool {
    let opened = body.iter().filter(|byte| b"{[".contains(byte)).count();
    let twins = serde_json::from_slice(body).map(|HasTwins(twins)| twins);
    opened >= DEPTH_MAX || twins.unwrap_or(true) || body.windows(11).any(|it| it == b"$serde_json")
}

fn ask(kind: u8, status: u16, body: &[u8]) -> Ask {
    let has = |text: &[u8]| body.windows(text.len()).any(|it| it == text);
    match kind {
        // Who may not ask for the status asks for figures, and there are none.
        6 if status == 200 && !has(b"error") && !has(b"\\u") => Ask::Status,
        0 => Ask::Range(Get::one(b"k")),
        1 => {
            let get = Op::Get(Get::one(b"k"));
            Ask::Txn {
                compare: Vec::new(),
                success: vec![get.clone(), Op::Delete(b"k".to_vec(), Vec::new())],
                failure: vec![get],
            }
        }
        2 => Ask::Grant { ttl_s: 5 },
        3 => Ask::KeepAlive { lease: 7 },
        4 => Ask::TimeToLive { lease: 7 },
        _ => Ask::Revoke { lease: 7 },
    }
}

/// What an answer says, by the rules of the gateway: 64-bit numbers may be strings, and what is false, 0 or empty
/// is left out. `None` is an answer that makes no sense, or an error.
fn judge(ask: &Ask, said: &Value) -> Option<Answer> {
    if said.get("error").is_some() {
        return None;
    }
    let answer = said.get("result").unwrap_or(said);
    let header = answer.get("header").filter(|it| it.is_object())?;
    let revision = number(header, "revision")?;
    number(header, "raft_term")?;
    Some(match ask {
        Ask::Txn {
            success, failure, ..
        } => {
            let succeeded = answer.get("succeeded") == Some(&Value::Bool(true));
            let done = if succeeded { success } else { failure };
            let responses = elements(answer, "responses");
            if responses.len() != done.len() {
                return None;
            }
            let pairs = done.iter().zip(responses);
            let reads = pairs.filter(|(op, _)| matches!(op, Op::Get(_)));
            let got =
                reads.map(|(_, it)| read_got(it.get("response_range").unwrap_or(&Value::Null)));
            let got = got.collect::<Option<Vec<_>>>()?;
            Answer::Txn {
                revision,
                succeeded,
                got,
            }
        }
        Ask::Range(_) => Answer::Range {
            revision,
            got: read_got(answer)?,
        },
        Ask::Grant { .. } => {
            let (lease, ttl_s) = (number(answer, "ID")?, number(answer, "TTL")?);
            if lease == 0 || ttl_s == 0 {
                return None;
            }
            Answer::Granted { lease, ttl_s }
        }
        Ask::KeepAlive { .. } => Answer::KeptAlive {
            ttl_s: number(answer, "TTL")?,
        },
        Ask::TimeToLive { .. } => match answer.get("TTL") {
            Some(Value::String(text)) if text == "-1" => Answer::TimeToLive {
                left_s: 0,
                granted_s: 0,
            },
            _ => Answer::TimeToLive {
                left_s: number(answer, "TTL")?,
                granted_s: number(answer, "grantedTTL")?,
            },
        },
        Ask::Revoke { .. } | Ask::Compact { .. } => Answer::Done,
        Ask::Status => Answer::Status {
            bytes: number(answer, "dbSize")?,
            bytes_in_use: number(answer, "dbSizeInUse")?,
        },
    })
}

/// What the first line of a watch says, if that is no error.
fn judge_events(said: &Value) -> Option<Vec<Event>> {
    let result = said.get("result").unwrap_or(&Value::Null);
    let is_over = said.get("error").is_some()
        || number(result, "compact_revision")? > 0
        || result.get("canceled") == Some(&Value::Bool(true));
    let event = |event: &Value| {
        let kv = read_kv(event.get("kv").unwrap_or(&Value::Null))?;
        match event.get("type") {
            Some(Value::String(kind)) if kind == "PUT" => Some(Event::Put(kv)),
            Some(Value::String(kind)) if kind == "DELETE" => Some(Event::Delete(kv)),
            Some(Value::String(_)) => None,
            _ => Some(Event::Put(kv)),
        }
    };
    match is_over {
        true => None,
        false => {
            let events: Vec<Event> = elements(result, "events")
                .iter()
                .map(event)
                .collect::<Option<_>>()?;
            Some(events).filter(|it| !it.is_empty())
        }
    }
}

fn read_got(range: &Value) -> Option<Got> {
    Some(Got {
        kvs: elements(range, "kvs")
            .iter()
            .map(read_kv)
            .collect::<Option<_>>()?,
        more: range.get("more") == Some(&Value::Bool(true)),
        count: number(range, "count")?,
    })
}

fn read_kv(kv: &Value) -> Option<Kv> {
    Some(Kv {
        key: bytes(kv, "key")?,
        value: bytes(kv, "value")?,
        created: number(kv, "create_revision")?,
        modified: number(kv, "mod_revision")?,
    })
}

fn elements<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], |it| &it[..])
}

fn number(object: &Value, name: &str) -> Option<u64> {
    let digits = match object.get(name) {
        None | Some(Value::Null) => return Some(0),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return None,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

fn bytes(object: &Value, name: &str) -> Option<Vec<u8>> {
    match object.get(name) {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(text)) => STANDARD.decode(text).ok(),
        Some(_) => None,
    }
}

/// An etcd that answers what a script says, and the client that asks it.
///
/// A connection that is open is answered before it asks: the client finds the answer when it looks for one, and no
/// thread has to wake up. Another thread answers the first questions of a connection.
struct Peer {
    gateway: Gateway,
    /// What the next connection is answered.
    next: Arc<Mutex<Vec<u8>>>,
    opened: Receiver<TcpStream>,
    /// The etcd's end of the connection that is open.
    open: Option<TcpStream>,
}

impl Peer {
    fn begin() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let endpoints = Endpoints::parse(&format!("http://{address}")).expect("an endpoint");
        let endpoints = endpoints.connecting_within(WITHIN);
        let (next, (tell, opened)) = (Arc::default(), channel());
        let answer = Arc::clone(&next);
        thread::spawn(move || serve(&listener, &answer, &tell));
        Self {
            gateway: Gateway::new(&endpoints, 0),
            next,
            opened,
            open: None,
        }
    }

    /// What an answer is understood as; `None` is an error.
    fn call(&mut self, ask: &Ask, status: u16, is_chunked: bool, body: &[u8]) -> Option<Answer> {
        let answer = match is_chunked {
            true => chunked(status, body),
            false => plain(status, body),
        };
        self.open = self.open.take().filter(is_open);
        let is_open = self.open.is_some();
        match &mut self.open {
            Some(socket) => socket.write_all(&answer).expect("room in the socket"),
            None => *self.next.lock().expect("no poison") = answer,
        }
        let answer = self.gateway.call(ask, WITHIN);
        if !is_open {
            self.open = self.opened.recv().ok();
        }
        answer.ok()
    }

    /// What the first line of a stream is understood as; `None` is an error, or nothing.
    fn watch(&mut self, status: u16, line: &[u8]) -> Option<Vec<Event>> {
        *self.next.lock().expect("no poison") = chunked(status, &[line, b"\n"].concat());
        let watch = Watch::begin(&mut self.gateway, b"k", b"l", 1, WITHIN);
        let _ = self.opened.recv();
        match watch.ok()?.next(WITHIN) {
            Ok(Watched::Changed(events)) => Some(events),
            Ok(Watched::Nothing) => panic!("the stream has an end"),
            Err(_) => None,
        }
    }
}

/// Whether the client has not closed this. What it has asked is read and forgotten.
fn is_open(mut socket: &TcpStream) -> bool {
    let mut questions = [0; 4_096];
    socket.set_nonblocking(true).expect("a socket");
    loop {
        match socket.read(&mut questions) {
            Ok(1..) => {}
            Ok(0) => return false,
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Answers which version it is, then what the script says, and hands the connection over.
fn serve(listener: &TcpListener, answer: &Mutex<Vec<u8>>, tell: &Sender<TcpStream>) {
    loop {
        let (mut socket, _) = listener.accept().expect("a connection");
        let mut question = [0; 4_096];
        let _ = socket.read(&mut question);
        let _ = socket.write_all(&plain(200, br#"{"etcdserver":"3.5.30"}"#));
        let _ = socket.read(&mut question);
        let _ = socket.write_all(&answer.lock().expect("no poison"));
        let _ = tell.send(socket);
    }
}

fn plain(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The same in chunks: of one byte, of two, and so on.
fn chunked(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n");
    let (mut out, mut rest, mut size) = (head.into_bytes(), body, 1);
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(size.min(rest.len()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        (rest, size) = (behind, size + 1);
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// Whether some object in a value has two members of one name.
struct HasTwins(bool);

impl<'de> Deserialize<'de> for HasTwins {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = HasTwins;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HasTwins, A::Error> {
                let (mut names, mut has_twins) = (HashSet::new(), false);
                while let Some((name, value)) = map.next_entry::<String, HasTwins>()? {
                    has_twins |= !names.insert(name) | value.0;
                }
                Ok(HasTwins(has_twins))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<HasTwins, A::Error> {
                let mut has_twins = false;
                while let Some(value) = seq.next_element::<HasTwins>()? {
                    has_twins |= value.0;
                }
                Ok(HasTwins(has_twins))
            }

            fn visit_str<E>(self, _: &str) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }

            fn visit_bool<E>(self, _: bool) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }

            fn visit_unit<E>(self) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }

            fn visit_u64<E>(self, _: u64) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }

            fn visit_i64<E>(self, _: i64) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }

            fn visit_f64<E>(self, _: f64) -> Result<HasTwins, E> {
                Ok(HasTwins(false))
            }
        }
        from.deserialize_any(Any)
    }
}
