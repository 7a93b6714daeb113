//! What a review of the client (`latchd::client`) found, each as a test of what should hold.

#![allow(clippy::unwrap_used, missing_docs)]
// Threads play other clients, peers and those who wait.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code, reason = "the tests of the client use the rest of it")]
#[path = "../client/proxy.rs"]
mod proxy;
#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of the daemon use the rest of it"
)]
#[path = "../daemon/vocabulary/mod.rs"]
mod vocabulary;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use latchd::client::{Client, Enqueued, ErrorKind, LostSignal};

use proxy::Proxy;
use vocabulary::{Daemon, PATIENCE};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn connect(daemon: &Daemon) -> Client {
    Client::connect(&daemon.address().to_string()).unwrap()
}

/// Whoever wants to be told of a loss is told, whatever becomes of the others who do.
#[test]
fn a_callback_that_panics_takes_none_of_the_others_with_it() {
    let daemon = Daemon::start(&[]);
    let lock = connect(&daemon).lock("job").lease(ms(500));
    let guard = lock.acquire().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(|_| panic!("on purpose"));
    guard.on_lost(move |why| tell.send(why).unwrap());
    drop(daemon);
    assert!(guard.lost().wait(PATIENCE));
    assert!(told.recv_timeout(PATIENCE).is_ok(), "it was not called");
}

/// What a callback has captured may look at the guard when it is dropped: no lock is taken then.
#[test]
fn a_release_drops_callbacks_without_a_lock() {
    struct Looks(LostSignal);
    impl Drop for Looks {
        fn drop(&mut self) {
            let _ = self.0.is_set();
        }
    }
    let daemon = Daemon::start(&[]);
    let guard = connect(&daemon).lock("job").acquire().unwrap();
    let looks = Looks(guard.lost().clone());
    guard.on_lost(move |_| drop(looks));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let _ = guard.release();
        tell.send(()).unwrap();
    });
    assert!(told.recv_timeout(PATIENCE).is_ok(), "the release hangs");
}

/// An attached client is granted a lock, and neither the answer nor that of `who` arrives: the lock is held,
/// so whoever asked has to be told that nobody knows.
#[test]
fn a_lost_answer_is_reported_though_who_is_lost_too() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::builder(&proxy.address.to_string());
    let client = client
        .attach("gw/1", Duration::from_secs(60), "s3cret")
        .connect()
        .unwrap();
    proxy.stall_answers(true);
    let lock = client.lock("job").lease(Duration::from_secs(60));
    let asking = thread::spawn(move || lock.acquire().map(drop));
    let other = connect(&daemon);
    while other.who("job").unwrap().holders.is_empty() {}
    proxy.cut_before("who\njob");
    proxy.cut();
    proxy.stall_answers(false);
    let error = asking.join().unwrap().unwrap_err();
    let holders = other.who("job").unwrap().holders;
    assert_eq!(holders[0].client.as_deref(), Some("gw/1"), "it is held");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
}

const GREETING: &[u8] = b"ok latchd/0.1.0 epoch=1 fence=1\n";

/// A peer: for each frame of a connection, by its number from 0 and its verb, says what to answer, or
/// hangs up.
fn peer(
    answer: impl Fn(usize, &str, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let (count, answer) = (Arc::clone(&accepted), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            thread::spawn(move || {
                let (mut received, mut bytes, mut frames) = (Vec::new(), [0; 4096], 0);
                while let Ok(size @ 1..) = stream.read(&mut bytes) {
                    received.extend_from_slice(&bytes[..size]);
                    let ends: Vec<usize> = memchr::memchr_iter(b'\n', &received).collect();
                    for frame in ends.chunks_exact(3) {
                        let start = frames_start(&ends, frame[0]);
                        let verb = String::from_utf8_lossy(&received[start..frame[0]]).into_owned();
                        if !answer(frames, &verb, &mut stream) {
                            let _ = stream.shutdown(Shutdown::Both);
                            return;
                        }
                        frames += 1;
                    }
                    let used = ends.chunks_exact(3).last().map_or(0, |it| it[2] + 1);
                    received.drain(..used);
                }
            });
        }
    });
    (address, accepted)
}

/// Where the line begins that ends here.
fn frames_start(ends: &[usize], end: usize) -> usize {
    let before = ends.iter().rev().find(|it| **it < end);
    before.map_or(0, |it| it + 1)
}

/// A server that never stops talking costs its own guards something, and those of others nothing.
#[test]
fn a_server_that_floods_takes_no_renewals_from_another() {
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    let (flooding, _) = peer(move |number, _, stream| {
        if number == 0 {
            return stream.write_all(GREETING).is_ok();
        }
        let grant = b"ok 00000000000000010000000000000001 60 1\n";
        let mut is_open = stream.write_all(grant).is_ok();
        let flood = b"lost other 1 broken\n".repeat(2_000);
        while is_open && !stops.load(Ordering::SeqCst) {
            is_open = stream.write_all(&flood).is_ok();
        }
        false
    });
    let daemon = Daemon::start(&[]);
    let client = Client::connect(&format!("{flooding},{}", daemon.address())).unwrap();
    let key_at = |server: SocketAddr| {
        let keys = (0..).map(|number| format!("key-{number}"));
        let mut keys = keys.filter(|key| client.server_of(key) == server.to_string());
        keys.next().unwrap()
    };
    let (theirs, ours) = (key_at(flooding), key_at(daemon.address()));
    let guard = client.lock(ours).lease(ms(1_000)).acquire().unwrap();
    let flooded = {
        let client = client.clone();
        thread::spawn(move || client.lock(theirs).try_acquire().map(drop))
    };
    let is_lost = guard.lost().wait(ms(4_000));
    stop.store(true, Ordering::SeqCst);
    let _ = flooded.join();
    assert!(!is_lost, "{:?}", guard.lost().why());
}

/// A server that greets and then hangs up, as one does that drains, is asked again after pauses that grow.
#[test]
fn a_server_that_greets_and_hangs_up_is_not_hammered() {
    let (address, accepted) = peer(|number, verb, stream| match (number, verb) {
        (0, _) => stream.write_all(GREETING).is_ok(),
        (_, "l") => {
            let grant = b"ok 00000000000000010000000000000001 1 1\n";
            stream.write_all(grant).is_ok()
        }
        _ => false,
    });
    let client = Client::builder(&address.to_string()).keep(true);
    let guard = client.connect().unwrap().lock("job").try_acquire().unwrap();
    assert!(guard.lost().wait(PATIENCE));
    let attempts = accepted.load(Ordering::SeqCst);
    assert!(attempts < 50, "{attempts} connections within a second");
}

/// A place is given up when it is dropped, says its page. That of an attached client is no exception.
#[test]
fn a_place_of_an_attached_client_is_given_up_when_it_is_dropped() {
    let daemon = Daemon::start(&[]);
    let attached = Client::builder(&daemon.address().to_string());
    let attached = attached
        .attach("gw/1", Duration::from_secs(60), "s3cret")
        .connect()
        .unwrap();
    let other = connect(&daemon);
    let held = other.lock("job").acquire().unwrap();
    let another = attached.lock("another").acquire().unwrap(); // the client is there all the time
    match attached.lock("job").enqueue().unwrap() {
        Enqueued::Queued(place) => drop(place),
        Enqueued::Held(_) => panic!("it is somebody else's"),
    }
    held.release().unwrap();
    let next = other.lock("job").wait(ms(3_000)).acquire();
    assert!(
        next.is_ok(),
        "the queue waits for a place that nobody has: {next:?}"
    );
    drop(another);
}

/// What was adopted belongs to an owner whose connection is gone, so the connection that renews it owns
/// nothing, and a server closes what owns nothing and is silent. A lease must not be in doubt for that.
#[test]
fn a_guard_of_a_client_that_keeps_is_not_cut_off_for_its_silence() {
    let daemon = Daemon::start(&["--read-timeout=1"]);
    let keeps = |address: SocketAddr| {
        let builder = Client::builder(&address.to_string()).keep(true);
        builder.connect().unwrap()
    };
    let first = keeps(daemon.address());
    let lock = first.lock("job").lease(Duration::from_secs(600));
    let token = lock.acquire().unwrap().leave().unwrap();
    drop(lock);
    drop(first);
    let proxy = Proxy::to(daemon.address());
    let second = keeps(proxy.address);
    let guard = second
        .lock("job")
        .lease(Duration::from_secs(600))
        .adopt(token)
        .unwrap();
    let before = proxy.accepted();
    assert!(!guard.lost().wait(ms(4_000)));
    let after = proxy.accepted();
    assert_eq!(
        after, before,
        "it had to connect again, and was in doubt meanwhile"
    );
}

/// The server has lost the connection and let go, and the client cannot know: a middlebox has reset one
/// side, or the server has given it up. What nobody can know is not certain.
#[test]
fn is_held_is_false_when_the_server_alone_has_lost_the_connection() {
    let daemon = Daemon::start(&[]);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let far = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
    let (server, fars) = (daemon.address(), Arc::clone(&far));
    thread::spawn(move || {
        let mut nears = Vec::new(); // they stay open
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(server).unwrap());
            fars.lock().unwrap().push(far.try_clone().unwrap());
            nears.push(near.try_clone().unwrap());
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let ours = Client::connect(&address.to_string()).unwrap();
    let guard = ours
        .lock("job")
        .lease(Duration::from_secs(600))
        .acquire()
        .unwrap();
    for stream in &*far.lock().unwrap() {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    let next = connect(&daemon).lock("job").acquire().unwrap();
    assert!(next.fence() > guard.fence());
    assert!(!guard.is_held(), "both hold it");
}
