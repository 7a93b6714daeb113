//! What can happen between a client and its server: a proxy that stalls, swallows and cuts, and peers
//! that are no latchd at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::vocabulary::PATIENCE;

/// What a latchd answers to `hello`.
pub(crate) const GREETING: &[u8] = b"ok latchd/0.1.0 epoch=1 fence=1\n";

/// Forwards everything, until it is told to do otherwise.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    server: SocketAddr,
    /// Connections before this number get nothing through in either direction.
    stalled_below: usize,
    /// Nothing that comes from clients gets through.
    stalls_requests: bool,
    /// Nothing that comes from the server gets through.
    stalls_answers: bool,
    /// New connections are closed at once.
    refuses: bool,
    /// A chunk from a client that holds this is forwarded, and the connection cut before the answer.
    cuts_after: Option<Vec<u8>>,
    /// A chunk from a client that holds this is cut and never forwarded.
    cuts_before: Option<Vec<u8>>,
    open: Vec<TcpStream>,
    /// The sides of `open` that lead to the server.
    servers: Vec<TcpStream>,
    /// What ends on the side of the server does not end on that of the client.
    hides_ends: bool,
    accepted: usize,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                server,
                stalled_below: 0,
                stalls_requests: false,
                stalls_answers: false,
                refuses: false,
                cuts_after: None,
                cuts_before: None,
                open: Vec::new(),
                servers: Vec::new(),
                hides_ends: false,
                accepted: 0,
            }),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                theirs.accept(client.unwrap());
            }
        });
        Self { address, shared }
    }

    fn change(&self, act: impl FnOnce(&mut State)) {
        act(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
    }

    pub(crate) fn stall_requests(&self, stalls: bool) {
        self.change(|state| state.stalls_requests = stalls);
    }

    pub(crate) fn stall_answers(&self, stalls: bool) {
        self.change(|state| state.stalls_answers = stalls);
    }

    /// Nothing gets through any more on the connections that are open now.
    pub(crate) fn stall_present(&self) {
        self.change(|state| state.stalled_below = state.accepted + 1);
    }

    /// New connections lead to this server.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        self.change(|state| state.server = server);
    }

    pub(crate) fn refuse(&self, refuses: bool) {
        self.change(|state| state.refuses = refuses);
    }

    /// The next request with this in it reaches the server, and its answer nobody.
    pub(crate) fn cut_after(&self, needle: &str) {
        self.change(|state| state.cuts_after = Some(needle.into()));
    }

    /// The next request with this in it does not reach the server, and its connection ends.
    pub(crate) fn cut_before(&self, needle: &str) {
        self.change(|state| state.cuts_before = Some(needle.into()));
    }

    /// Ends all connections, on both sides.
    pub(crate) fn cut(&self) {
        self.change(|state| {
            for stream in state.open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// Ends all connections for the server, and lets no client notice.
    pub(crate) fn cut_servers(&self) {
        self.change(|state| {
            state.hides_ends = true;
            for stream in state.servers.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// How many connections there were.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.state.lock().unwrap().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.change(|state| {
            state.refuses = true;
            state.stalls_answers = false;
            state.stalls_requests = false;
            state.stalled_below = 0;
        });
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        let mut state = self.state.lock().unwrap();
        state.accepted += 1;
        let server = match state.refuses {
            true => return,
            false => TcpStream::connect(state.server),
        };
        let Ok(server) = server else {
            return;
        };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        state.open.push(client.try_clone().unwrap());
        state.open.push(server.try_clone().unwrap());
        state.servers.push(server.try_clone().unwrap());
        let number = state.accepted;
        drop(state);
        // What the server answers from now on gets lost, and so does the connection.
        let is_cut = Arc::new(AtomicBool::new(false));
        for (from, to, is_request) in [
            (
                client.try_clone().unwrap(),
                server.try_clone().unwrap(),
                true,
            ),
            (server, client, false),
        ] {
            let (shared, is_cut) = (Arc::clone(self), Arc::clone(&is_cut));
            thread::spawn(move || {
                shared.forward(&from, &to, is_request, number, &is_cut);
                if shared.state.lock().unwrap().hides_ends {
                    return; // `open` has the client's side
                }
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }

    fn forward(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        is_request: bool,
        number: usize,
        is_cut: &AtomicBool,
    ) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let state = self.state.lock().unwrap();
            let stalls = |state: &mut State| {
                number < state.stalled_below
                    || match is_request {
                        true => state.stalls_requests,
                        false => state.stalls_answers,
                    }
            };
            let mut state = self.changed.wait_while(state, stalls).unwrap();
            if !is_request {
                drop(state);
                if is_cut.load(Ordering::SeqCst) || to.write_all(&bytes[..count]).is_err() {
                    return;
                }
                continue;
            }
            let holds = |needle: &Option<Vec<u8>>| {
                let needle = needle.as_deref();
                needle.is_some_and(|it| memchr::memmem::find(&bytes[..count], it).is_some())
            };
            if holds(&state.cuts_before) {
                state.cuts_before = None;
                return;
            }
            if holds(&state.cuts_after) {
                state.cuts_after = None;
                is_cut.store(true, Ordering::SeqCst);
            }
            drop(state);
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    }
}

/// Somebody who takes every connection and says this to each, or nothing, and never hangs up.
pub(crate) fn peer_that_says(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let _ = client.write_all(words);
                let _ = client.read_to_end(&mut Vec::new());
            });
        }
    });
    address
}

/// Somebody who is asked for each frame of each connection, by its number from 0 and its verb, what to
/// write, and hangs up if that is nothing. Also counts the connections.
pub(crate) fn peer_that_decides(
    answer: impl Fn(usize, &str, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    const FRAME_LINES: usize = 3;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let (count, answer) = (Arc::clone(&accepted), Arc::new(answer));
    thread::spawn(move || {
        for client in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            let (mut client, answer) = (client.unwrap(), Arc::clone(&answer));
            thread::spawn(move || {
                let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
                let mut line = move || lines.next().and_then(Result::ok);
                for number in 0.. {
                    let Some(verb) = line() else {
                        return;
                    };
                    for _ in 1..FRAME_LINES {
                        line();
                    }
                    if !answer(number, &verb, &mut client) {
                        let _ = client.shutdown(Shutdown::Both);
                        return;
                    }
                }
            });
        }
    });
    (address, accepted)
}

/// How often something has happened, for whoever waits for it.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    shared: Arc<(Mutex<usize>, Condvar)>,
}

impl Tally {
    /// It has happened once more: so often now.
    pub(crate) fn add(&self) -> usize {
        let mut count = self.shared.0.lock().unwrap();
        *count += 1;
        self.shared.1.notify_all();
        *count
    }

    pub(crate) fn count(&self) -> usize {
        *self.shared.0.lock().unwrap()
    }

    /// Waits until it has happened so often. Says whether it has.
    pub(crate) fn reaches(&self, enough: usize) -> bool {
        let count = self.shared.0.lock().unwrap();
        let is_less = |count: &mut usize| *count < enough;
        let waited = self.shared.1.wait_timeout_while(count, PATIENCE, is_less);
        !waited.unwrap().1.timed_out()
    }
}

/// What a latchd answers to `hello` in this life.
pub(crate) fn greeting(epoch: u64) -> Vec<u8> {
    format!("ok latchd/0.1.0 epoch={epoch} fence=1\n").into_bytes()
}

/// A lock is granted, for a minute.
pub(crate) const GRANT: &[u8] = b"ok 00000000000000010000000000000001 60 1\n";
pub(crate) const RENEWAL: &[u8] = b"ok 60 1\n";

/// Somebody who answers the first request of each connection as a latchd would, and later ones with
/// these words, one after the other; then it falls silent and never hangs up.
pub(crate) fn peer_that_answers(words: &[&[u8]]) -> SocketAddr {
    const FRAME_LINES: usize = 3;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let words: Vec<Vec<u8>> = words.iter().map(|it| it.to_vec()).collect();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, words) = (client.unwrap(), words.clone());
            thread::spawn(move || {
                let (mut lines, mut bytes) = (0, [0; 4096]);
                let mut answers = [GREETING.to_vec()].into_iter().chain(words);
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    lines += memchr::memchr_iter(b'\n', &bytes[..count]).count();
                    while lines >= FRAME_LINES {
                        lines -= FRAME_LINES;
                        if let Some(answer) = answers.next() {
                            let _ = client.write_all(&answer);
                        }
                    }
                }
            });
        }
    });
    address
}
