//! A server on loopback that answers each request as the test says, and keeps what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use latchd::http_client::{LeaseClient, LeaseClientBuilder};
use serde_json::Value;

use crate::vocabulary::PATIENCE;

/// A request as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    head: String,
    pub(crate) body: Value,
    /// When it had been read.
    pub(crate) at: Instant,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// The last part of its path.
    pub(crate) fn action(&self) -> &str {
        self.path.rsplit('/').next().unwrap()
    }
}

/// What is done about a request.
pub(crate) enum Reply {
    /// A status and a body.
    Say(u16, String),
    /// These bytes, and then the end of the connection.
    Bytes(Vec<u8>),
    /// These bytes over and over, until nobody reads them any more.
    Endless(Vec<u8>),
    /// The end of the connection, without an answer.
    Close,
    /// Nothing, until the client hangs up.
    Hang,
}

impl Reply {
    pub(crate) fn json(status: u16, body: impl Into<String>) -> Self {
        Self::Say(status, body.into())
    }

    /// A grant for whoever has asked.
    pub(crate) fn granted(asked: &Asked, lease_id: &str, token: u64) -> Self {
        let lock = asked.path.split('/').nth(3).unwrap();
        let owner = &asked.body["owner_id"];
        Self::json(
            200,
            format!(
                "{{\"acquired\":true,\"lock_name\":\"{lock}\",\"owner_id\":{owner},\"lease_id\":\"{lease_id}\",\
                 \"fencing_token\":{token},\"lease_expiry_ms\":1767225660000}}\n"
            ),
        )
    }

    pub(crate) fn held(retry_ms: u64) -> Self {
        let body = format!(
            "{{\"acquired\":false,\"lock_name\":\"job\",\"current_owner_id\":\"you\",\"current_expiry_ms\":1,\
             \"recommended_retry_ms\":{retry_ms},\"reason\":\"HELD\"}}\n"
        );
        Self::json(409, body)
    }

    pub(crate) fn renewed() -> Self {
        Self::json(
            200,
            "{\"renewed\":true,\"lease_expiry_ms\":1767225660001}\n",
        )
    }

    pub(crate) fn not_renewed(reason: &str) -> Self {
        Self::json(
            409,
            format!("{{\"renewed\":false,\"reason\":\"{reason}\"}}\n"),
        )
    }
}

type Script = dyn Fn(usize, &Asked) -> Reply + Send + Sync;

/// The server; dropped, it ends with all its connections.
pub(crate) struct Scripted {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    script: Box<Script>,
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    connections: Vec<TcpStream>,
    /// Connections that the client has ended.
    hang_ups: usize,
}

impl Scripted {
    /// The script is given how many requests came before, and the request.
    pub(crate) fn start(script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self {
            address,
            shared,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn client(&self) -> LeaseClient {
        self.builder().build().unwrap()
    }

    pub(crate) fn builder(&self) -> LeaseClientBuilder {
        LeaseClient::builder(&format!("{}/", self.url()))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.state.lock().unwrap().asked.clone()
    }

    /// Waits until it was asked so often.
    #[track_caller]
    pub(crate) fn wait_for_requests(&self, count: usize) {
        self.wait_until(|state| state.asked.len() >= count);
    }

    /// Waits until clients have ended so many connections.
    #[track_caller]
    pub(crate) fn wait_for_hang_ups(&self, count: usize) {
        self.wait_until(|state| state.hang_ups >= count);
    }

    #[track_caller]
    fn wait_until(&self, done: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let waiting = |state: &mut State| !done(state);
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, waiting);
        let (state, result) = waited.unwrap();
        let asked = state.asked.clone();
        drop(state);
        assert!(!result.timed_out(), "not in time, after {asked:#?}");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for connection in &self.shared.state.lock().unwrap().connections {
            let _ = connection.shutdown(Shutdown::Both); // it may have ended
        }
        let _ = TcpStream::connect(self.address); // so that it looks
        let _ = self.accepting.take().unwrap().join();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        let mut state = shared.state.lock().unwrap();
        if shared.is_over.load(Ordering::SeqCst) {
            break;
        }
        state.connections.push(stream.try_clone().unwrap());
        drop(state);
        let shared = Arc::clone(shared);
        threads.push(thread::spawn(move || {
            if serve(&stream, &shared) == Ended::ByClient {
                shared.state.lock().unwrap().hang_ups += 1;
                shared.changed.notify_all();
            }
            let _ = stream.shutdown(Shutdown::Both);
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

#[derive(PartialEq, Eq)]
enum Ended {
    ByClient,
    ByServer,
}

fn serve(stream: &TcpStream, shared: &Shared) -> Ended {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader) {
        let before = {
            let mut state = shared.state.lock().unwrap();
            state.asked.push(asked.clone());
            state.asked.len() - 1
        };
        shared.changed.notify_all();
        match (shared.script)(before, &asked) {
            Reply::Say(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} Whatever\r\nContent-Length: {}\r\n",
                    body.len()
                );
                if write!(&mut &*stream, "{head}\r\n{body}").is_err() {
                    return Ended::ByClient;
                }
            }
            Reply::Bytes(bytes) => {
                let _ = (&mut &*stream).write_all(&bytes);
                return Ended::ByServer;
            }
            Reply::Endless(bytes) => {
                while (&mut &*stream).write_all(&bytes).is_ok() {}
                return Ended::ByClient;
            }
            Reply::Close => return Ended::ByServer,
            Reply::Hang => {
                let _ = reader.read_to_end(&mut Vec::new());
                return Ended::ByClient;
            }
        }
    }
    Ended::ByClient
}

/// The next request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> Option<Asked> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let path = head.split(' ').nth(1)?.to_owned();
    let mut asked = Asked {
        path,
        head: head.replace("\r\n", "\n"),
        body: Value::Null,
        at: Instant::now(),
    };
    let length = asked.header("Content-Length")?.parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.body = serde_json::from_slice(&body).unwrap();
    asked.at = Instant::now();
    Some(asked)
}
