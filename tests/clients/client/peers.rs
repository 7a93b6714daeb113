//! Whom a client may meet: servers on several doors, servers that want a secret, and peers that are no
//! servers at all.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use latchd::client::{Client, ErrorKind, Lost, Reason, Token, Told, Verb};

use super::proxy::{GRANT, GREETING, peer_that_answers, peer_that_decides, peer_that_says};
use super::{builder, client, ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

#[test]
fn keys_are_at_the_server_where_other_clients_look_for_them() {
    let daemons: Vec<_> = (0..3).map(|_| Daemon::start(&[])).collect();
    let addresses: Vec<_> = daemons.iter().map(|it| it.address().to_string()).collect();
    let client = Client::connect(&addresses.join(",")).unwrap();
    assert_eq!(client.servers(), addresses);
    client.ping().unwrap();
    assert_eq!(client.stats().unwrap().len(), 3);
    for (key, index) in [("my-key", 2), ("foo", 2), ("a", 0), ("🔒", 0)] {
        assert_eq!(client.server_of(key), addresses[index]);
        let guard = client.lock(key).acquire().unwrap();
        for (at, daemon) in daemons.iter().enumerate() {
            let who = super::client(daemon).who(key).unwrap();
            assert_eq!(who.holder_count, u64::from(at == index), "{key} at {at}");
        }
        assert_eq!(client.who(key).unwrap().holders[0].fence, guard.fence());
    }
    // A pattern may match keys of all of them, a name only of one.
    let mut all = client.listen(">").unwrap();
    for channel in ["a", "foo", "b", "c"] {
        assert_eq!(client.signal(channel, "x").unwrap(), 1, "{channel}");
        assert_eq!(
            all.next_within(PATIENCE).unwrap().unwrap().channel,
            channel.as_bytes()
        );
    }
    let mut events = client.watch("foo").unwrap();
    client.counter("foo").add(1).unwrap();
    assert!(events.next_within(PATIENCE).unwrap().is_some());

    // One that is down takes its own keys with it and no others.
    let mut daemons = daemons;
    drop(daemons.remove(2));
    assert_eq!(
        client.lock("foo").try_acquire().unwrap_err().kind(),
        ErrorKind::Down
    );
    drop(client.lock("a").try_acquire().unwrap());
    assert!(
        Client::connect(&addresses.join(",")).is_ok(),
        "two of three are there"
    );
    daemons.clear();
    let error = Client::connect(&addresses.join(",")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
}

#[test]
fn a_unix_socket_is_a_door_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let client = Client::connect(&format!("unix:{}", path.display())).unwrap();
    let guard = client.lock("job").lease(s(2)).acquire().unwrap();
    assert!(!guard.lost().wait(ms(2_500)));
    assert_eq!(super::client(&daemon).who("job").unwrap().holder_count, 1);
    guard.release().unwrap();
    let error = Client::connect("unix:/there/is/none").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
}

#[test]
fn the_secret_is_shown_and_a_wrong_one_refused() {
    let daemon = Daemon::start(&["--auth-token=s3cret"]);
    let client = builder(&daemon).auth_token("s3cret").connect().unwrap();
    let guard = client.lock("job").lease(s(2)).acquire().unwrap();
    assert!(!guard.lost().wait(ms(2_500)));
    guard.release().unwrap();
    for wrong in [builder(&daemon).auth_token("guess"), builder(&daemon)] {
        let error = wrong.connect().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::Auth), "{error}");
        assert!(error.to_string().contains("secret"), "{error}");
    }
    let open = Daemon::start(&[]);
    let error = builder(&open).auth_token("s3cret").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("asks for no token"), "{error}");
}

#[test]
fn names_are_shown() {
    let daemon = Daemon::start(&[]);
    let client = builder(&daemon).name("nightly@db1").connect().unwrap();
    let _guard = client.lock("job").acquire().unwrap();
    assert_eq!(
        client.who("job").unwrap().holders[0].name.as_deref(),
        Some("nightly@db1")
    );
}

#[test]
fn whoever_never_answers_is_down() {
    let silent = peer_that_says(b"");
    let silent = Client::builder(&silent.to_string()).connect_timeout(ms(200));
    let error = silent.connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(error.to_string().ends_with("no answer in time"), "{error}");

    let daemon = Daemon::start(&[]);
    let client = builder(&daemon)
        .answer_timeout(ms(200))
        .connect_timeout(ms(200));
    let client = client.connect().unwrap();
    let guard = client.lock("job").lease(s(600)).acquire().unwrap();
    daemon.freeze();
    let start = Instant::now();
    let error = client.lock("other").try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    let error = client.counter("c").get().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    let error = client.counter("c").add(1).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Down | ErrorKind::Unknown),
        "{error}"
    );
    let error = guard.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(start.elapsed() < PATIENCE);
    daemon.thaw();
    // What was asked for meanwhile ended with its connection.
    drop(client.lock("other").acquire().unwrap());
}

/// Nobody who says what no latchd says makes a client panic, hang or believe.
#[test]
fn whoever_says_something_else_is_garbage() {
    const FLOOD: &[u8] = &[b'x'; (1 << 20) + 1];
    for words in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"ok\n",
        b"ok latchd/1 epoch=x\n",
        b"ok latchd/1\n",
        b"lost job\n",
        b"sig\n\xff\xfe\n",
        b"\n",
        FLOOD,
    ] {
        let peer = peer_that_says(words);
        let error = Client::connect(&peer.to_string()).unwrap_err();
        let shown = words[..words.len().min(20)].escape_ascii();
        assert_eq!(error.kind(), ErrorKind::Garbage, "{shown}: {error}");
    }
    let peer = peer_that_says(b"error_memory\n");
    let error = Client::connect(&peer.to_string()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Full), "{error}");
}

/// The greeting is right, and then they go astray.
#[test]
fn answers_that_make_no_sense_are_garbage() {
    let patient = |words: &[u8]| {
        let peer = peer_that_answers(&[words]);
        let client = Client::builder(&peer.to_string());
        client.answer_timeout(s(5)).connect().unwrap()
    };
    for words in [
        &b"ok\n"[..],
        b"nonsense\n",
        b"ok 00000000000000010000000000000001\n",
        b"ok 00000000000000010000000000000001 0\n",
        b"ok 00000000000000010000000000000001 10 2\n",
        b"ok 0000000000000001000000000000000x 10 1\n",
        b"ok 00000000000000010000000000000001 99999999999999999999 1\n",
        b"acquired 00000000000000010000000000000001 10 1\n",
        b"queued\n",
        b"nil\n",
        b"cas_conflict\n",
        b"lost job x broken\n",
        b"\xff\xfe\n",
    ] {
        let shown = words.escape_ascii();
        let error = patient(words).lock("job").try_acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Garbage, "{shown}: {error}");
    }
    for words in [
        &b"ok {\"holders\":7}\n"[..],
        b"ok []\n",
        b"ok {\n",
        b"ok {\"holders\":[{}]}\n",
        b"ok \n",
    ] {
        let shown = words.escape_ascii();
        let error = patient(words).who("job").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Garbage, "{shown}: {error}");
    }
}

/// A grant that is real as far as anybody can tell, from a peer that then goes astray.
#[test]
fn a_grant_is_lost_in_time_whatever_the_server_says_later() {
    const GRANT: &[u8] = b"ok 00000000000000010000000000000001 1 1\n";
    const PUSHED: &[u8] =
        b"ok 00000000000000010000000000000001 1 1\nlost job 1 broken\nlost job 2 broken\n";
    for (words, why) in [
        (&[GRANT][..], Lost::Expired),
        (&[GRANT, b"rubbish\n"], Lost::Expired),
        (&[GRANT, b"ok 0 1\n"], Lost::Expired),
        (&[GRANT, b"error_memory\n"], Lost::Expired),
        (&[GRANT, b"error\n"], Lost::Forgotten),
        (&[GRANT, b"error_lease_expired\n"], Lost::Expired),
        (&[PUSHED], Lost::Broken),
    ] {
        let peer = peer_that_answers(words);
        let client = Client::builder(&peer.to_string()).answer_timeout(ms(100));
        let guard = client.connect().unwrap().lock("job").try_acquire().unwrap();
        assert!(guard.lost().wait(PATIENCE));
        assert!(!guard.is_held());
        let shown: Vec<_> = words
            .iter()
            .map(|it| it.escape_ascii().to_string())
            .collect();
        let lost = guard.lost().why();
        // A server that talks rubbish is asked again, and lives the same life as before.
        let is_so = lost == Some(why) || words.len() == 2 && lost == Some(Lost::Disconnected);
        assert!(is_so, "{shown:?}: {lost:?}, not {why:?}");
    }
}

/// Only `error` and an expired lease say that something is held no longer. Whoever is refused for another reason is told that.
#[test]
fn a_refusal_is_no_loss() {
    for (word, kind) in [
        (&b"error\n"[..], ErrorKind::Lost),
        (b"error_lease_expired\n", ErrorKind::Lost),
        (b"error_storage\n", ErrorKind::Refused),
        (b"error_memory\n", ErrorKind::Refused),
    ] {
        let shown = word.escape_ascii();
        let at = |words: &[&[u8]]| {
            let client = Client::builder(&peer_that_answers(words).to_string());
            client.keep(true).connect().unwrap()
        };
        let token = Token::parse(b"00000000000000010000000000000001").unwrap();
        let error = at(&[word]).lock("job").adopt(token).unwrap_err();
        assert_eq!(error.kind(), kind, "adopt, {shown}: {error}");
        let guard = at(&[GRANT, word]).lock("job").try_acquire().unwrap();
        let error = guard.release().unwrap_err();
        assert_eq!(error.kind(), kind, "release, {shown}: {error}");
    }
}

/// A server that never stops talking costs its own guards something, and those of others nothing.
#[test]
fn a_server_that_floods_takes_no_renewals_from_another() {
    const GRANT: &[u8] = b"ok 00000000000000010000000000000001 60 1\n";
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    let (flooding, _) = peer_that_decides(move |number, _, stream| {
        if number == 0 {
            return stream.write_all(GREETING).is_ok();
        }
        let mut is_open = stream.write_all(GRANT).is_ok();
        let flood = b"lost other 1 broken\n".repeat(2_000);
        while is_open && !stops.load(Ordering::SeqCst) {
            is_open = stream.write_all(&flood).is_ok();
        }
        false
    });
    let daemon = Daemon::start(&[]);
    let client = Client::connect(&format!("{flooding},{}", daemon.address())).unwrap();
    let key_at = |server: SocketAddr| {
        let mut keys = (0..).map(|number| format!("key-{number}"));
        keys.find(|key| client.server_of(key) == server.to_string())
    };
    let theirs = key_at(flooding).unwrap();
    let ours = key_at(daemon.address()).unwrap();
    let guard = client.lock(ours).lease(s(2)).acquire().unwrap();
    let flooded = client.lock(theirs).try_acquire().unwrap();
    let is_lost = guard.lost().wait(s(5));
    stop.store(true, Ordering::SeqCst);
    drop(flooded);
    assert!(!is_lost, "{:?}", guard.lost().why());
}

/// Whoever listens for one thing is told in time that it did not come, whatever else does.
#[test]
fn a_flood_of_other_news_ends_no_timeout() {
    let (flooding, _) = peer_that_decides(|number, _, stream| {
        let answer = [GREETING, b"ok\n"][number.min(1)];
        let mut is_open = stream.write_all(answer).is_ok();
        let flood = b"lost other 1 broken\n".repeat(2_000);
        while is_open && number > 0 {
            is_open = stream.write_all(&flood).is_ok();
        }
        is_open
    });
    let client = Client::connect(&flooding.to_string()).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut signals = client.listen("a").unwrap();
        tell.send(signals.next_within(ms(50)).unwrap().is_none())
            .unwrap();
        let mut file = client.ranges("r").unwrap();
        file.unlock(0, 1).unwrap();
        tell.send(file.lost(ms(50)).unwrap().is_none()).unwrap();
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "next_within");
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "lost");
}

/// A server that greets and then hangs up, as one does that drains, is asked again after pauses that grow;
/// also one that renews before it hangs up.
#[test]
fn a_server_that_hangs_up_is_not_hammered() {
    const GRANT: &[u8] = b"ok 00000000000000010000000000000001 2 1\n";
    const RENEWAL: &[u8] = b"ok 2 1\n";
    for renews in [false, true] {
        let (address, accepted) = peer_that_decides(move |number, verb, stream| match verb {
            _ if number == 0 => stream.write_all(GREETING).is_ok(),
            "l" => stream.write_all(GRANT).is_ok(),
            "n" if renews => stream.write_all(RENEWAL).is_err(),
            _ => false,
        });
        let client = Client::builder(&address.to_string()).keep(true);
        let guard = client.connect().unwrap().lock("job").try_acquire().unwrap();
        assert_eq!(guard.lost().wait(s(4)), !renews);
        let attempts = accepted.load(Ordering::SeqCst);
        assert!(attempts < 50, "{attempts} connections within 4 s");
    }
}

/// Anything at all, from a seed: every call ends, with an error or with something that can be read.
#[test]
fn no_bytes_make_a_client_panic() {
    let mut chance = fastrand::Rng::with_seed(13);
    let pieces = [
        "ok",
        "acquired",
        " ",
        "\n",
        "00000000000000010000000000000001",
        "10",
        "1",
        "error",
        "error_",
        "timeout",
        "nil",
        "queued",
        "lost job 1 broken\n",
        "sig a b\n",
        "{",
        "}",
        "[\"a\"]",
        "\u{fffd}",
        "-1",
        "99999999999999999999",
        "ok held ex 0 0 #5",
        "leader resigned job\n",
        "5ms",
    ];
    for _ in 0..60 {
        let mut answer = || {
            let mut words = Vec::new();
            for _ in 0..chance.usize(1..8) {
                words.extend_from_slice(chance.choice(pieces).unwrap().as_bytes());
            }
            words.push(b'\n');
            words
        };
        let answers = [answer(), answer(), answer()];
        let peer = peer_that_answers(&[&answers[0], &answers[1], &answers[2]]);
        let client = Client::builder(&peer.to_string()).answer_timeout(ms(20));
        let client = client.connect_timeout(s(5)).build().unwrap();
        let _ = client.lock("job").try_acquire();
        let _ = client.who("job");
        let _ = client.list("l").range(0, -1);
        let _ = client.value("v").get();
        let _ = client.counter("c").add(1);
        let _ = client.listen("a").and_then(|mut it| it.next_within(ms(1)));
        let _ = client
            .ranges("r")
            .and_then(|mut it| it.test(latchd::client::Sharing::Shared, 0, 0));
    }
}

#[test]
fn the_low_door_answers_as_the_protocol_does() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let reply = client.ask_verb(Verb::Kset, b"k", b"v\t60").unwrap();
    assert_eq!((reply.told(), reply.line()), (Told::Done, &b"ok"[..]));
    let reply = client.ask_verb(Verb::Kget, b"k", b"").unwrap();
    assert_eq!(reply.told(), Told::Value(b"v"));
    let error = client.ask_verb(Verb::Incr, b"k", b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    let error = client
        .ask_verb(Verb::Release, b"k", b"00000000000000010000000000000001")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}
