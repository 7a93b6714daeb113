//! What is asked while a server is looked for, what comes of requests whose server cannot be found, and what is told of
//! an answer that was lost.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use latchd::client::{Client, Enqueued, Error, ErrorKind};

use super::follow::Pair;
use super::front::Role;
use super::proxy::{GRANT, GREETING, Proxy, Tally, peer_that_decides};
use super::{ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// The time in which nobody leads is none that the server takes for its answer.
#[test]
fn a_server_that_is_found_late_has_its_time_to_answer() {
    let mut pair = Pair::start();
    pair.lose_leader(Role::Gone);
    let client = Client::builder(&pair.list())
        .answer_timeout(s(1))
        .connect_timeout(s(60));
    let client = client.build().unwrap();
    let asking = thread::spawn(move || client.counter("c").add(1));
    // So many rounds take longer than an answer may.
    let before = pair.second.accepted();
    pair.second.wait_for_connections(before + 7);
    pair.take_over();
    assert_eq!(asking.join().unwrap().unwrap(), 1);
}

/// A server lists a thousand holders. The lost answer may be one of the others.
#[test]
fn an_acquire_is_not_repeated_when_not_all_holders_are_shown() {
    let asked = Tally::default();
    let asks = asked.clone();
    let (address, _) = peer_that_decides(move |_, verb, stream| match verb {
        "hello" => stream.write_all(GREETING).is_ok(),
        "who" => {
            let holder = "{\"fence\":7,\"name\":\"another\",\"hold\":\"slot\",\"since_s\":60.0}";
            let answer = format!("ok {{\"holder_count\":1001,\"holders\":[{holder}]}}\n");
            stream.write_all(answer.as_bytes()).is_ok()
        }
        _ => {
            asks.add();
            false
        }
    });
    let client = Client::connect(&address.to_string()).unwrap();
    let error = client.semaphore("pool", 5_000).acquire().unwrap_err();
    assert!(
        matches!(error, Error::Unknown { fence: None, .. }),
        "{error}"
    );
    assert_eq!(asked.count(), 1);
}

/// A leader that was stopped may have recorded the grant, and then the next one restores it, whatever becomes of the connection.
#[test]
fn an_acquire_that_a_stopped_leader_does_not_answer_is_not_known() {
    for is_enqueued in [false, true] {
        let pair = Pair::start();
        let client = Client::builder(&pair.list()).answer_timeout(ms(500));
        let client = client.connect().unwrap();
        pair.first.becomes(Role::Stopped);
        let error = match is_enqueued {
            false => client.lock("job").try_acquire().map(drop).unwrap_err(),
            true => client.lock("job").enqueue().map(drop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    }
}

/// A place is one of a connection, and a queue begins anew where another member leads: whoever waits for it is told.
#[test]
fn a_place_is_lost_when_another_member_leads() {
    let mut pair = Pair::start();
    let client = pair.client();
    let guard = client.lock("job").lease(s(30)).acquire().unwrap();
    let Enqueued::Queued(place) = client.lock("job").enqueue().unwrap() else {
        panic!("it is held");
    };
    pair.lose_leader(Role::Gone);
    pair.take_over();
    let error = place.wait(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    drop(guard);
}

/// What ends with its connection is let go by closing that.
#[test]
fn a_plain_guard_is_dropped_without_another_connection() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::connect(&proxy.address.to_string()).unwrap();
    let guard = client.lock("job").lease(s(600)).acquire().unwrap();
    proxy.stall_present();
    let before = proxy.accepted();
    drop(guard);
    assert_eq!(proxy.accepted(), before);
}

/// All of it together takes no longer than it may, also if that needs several steps: the release, another connection, and the
/// release there.
#[test]
fn a_guard_is_dropped_in_time_whatever_does_not_answer() {
    let (address, _) = peer_that_decides(|_, verb, stream| match verb {
        "hello" => stream.write_all(GREETING).is_ok(),
        "l" => stream.write_all(GRANT).is_ok(),
        _ => true,
    });
    let client = Client::builder(&address.to_string()).keep(true);
    let client = client.connect().unwrap();
    let guards: Vec<_> = (0..3)
        .map(|number| client.lock(format!("job{number}")).try_acquire().unwrap())
        .collect();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        drop(guards);
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()), "2 s each");
}

/// Two servers that send a key to each other are not asked for ever, however long the wait may be.
#[test]
fn a_wait_without_end_is_not_sent_round_for_ever() {
    let there: Arc<OnceLock<SocketAddr>> = Arc::default();
    let to = Arc::clone(&there);
    let answer = |verb: &str, to: SocketAddr| match verb {
        "hello" => GREETING.to_vec(),
        _ => format!("error_not_leader {to}\n").into_bytes(),
    };
    let (one, _) = peer_that_decides(move |_, verb, stream| {
        stream.write_all(&answer(verb, *to.get().unwrap())).is_ok()
    });
    let (other, _) =
        peer_that_decides(move |_, verb, stream| stream.write_all(&answer(verb, one)).is_ok());
    there.set(other).unwrap();
    let client = Client::builder(&one.to_string()).connect_timeout(ms(400));
    let lock = client.build().unwrap().lock("job").wait(s(1_000_000));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(lock.acquire().map(drop)).unwrap());
    let error = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
}

/// A member that names another leader each time fills nobody's memory: what is told of at the end are those of the last rounds.
#[test]
fn whoever_names_ever_new_leaders_is_not_remembered_with_all_of_them() {
    let named = Tally::default();
    let names = named.clone();
    let (address, _) = peer_that_decides(move |_, _, stream| {
        // Nobody is there.
        let answer = format!("error_not_leader 127.0.0.1:{}\n", names.add());
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let client = Client::builder(&address.to_string()).connect_timeout(s(3));
    let error = client.connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(named.count() > 4, "{} rounds", named.count());
    let text = error.to_string();
    let told = text.matches("127.0.0.1:").count() - 2; // the list, and its one member
    assert!(told <= 4, "{text}");
}
