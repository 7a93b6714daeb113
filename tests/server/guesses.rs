//! Guessing secrets: the delay of refusals, their rate per host, and that clients with the right
//! secret do not wait. Over pipes, with virtual time; `scripts/auth.txt` has what one client sees,
//! `daemon/auth.rs` real sockets.

use latch_sim::pipe::Pipes;
use latchd::access::Access;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::{Door, Host, Settings};

const WRONG: &[u8] = b"auth\n_\nguess\n";
const RIGHT: &[u8] = b"auth\n_\ns3cret\n";

/// How long a wrong secret takes a place.
const DELAY: Millis = Millis(100);

/// Places of a host.
const PLACES: usize = 16;

/// How long a connection may take to authenticate.
const AUTH_TIMEOUT: Millis = Millis::from_secs(5);

const GUESSING: Host = Host::V4([192, 0, 2, 1]);
const OTHER: Host = Host::V4([192, 0, 2, 2]);

fn pipes() -> Pipes {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        auth_timeout: AUTH_TIMEOUT,
        ..Settings::default()
    };
    Pipes::with(Rules::default(), settings)
}

/// So many connections from a host, each of which has sent this; not yet heard.
fn crowd(pipes: &mut Pipes, host: Host, count: usize, sent: &[u8]) -> Vec<usize> {
    let connect = |_| {
        let who = pipes.connect_from(host);
        pipes.send(who, sent);
        who
    };
    (0..count).map(connect).collect()
}

/// Time passes and the server comes to rest.
fn pass(pipes: &mut Pipes, span: Millis) {
    pipes.pass(span);
    pipes.settle();
}

/// Who of these was told something since the last time: the server's word, and who it was.
fn told(pipes: &mut Pipes, crowd: &[usize]) -> Vec<(usize, String)> {
    let told = crowd.iter().map(|&who| (who, pipes.read(who)));
    told.filter(|(_, word)| !word.is_empty()).collect()
}

/// How many were told `error_auth` since the last time; nobody was told anything else.
fn refused(pipes: &mut Pipes, crowd: &[usize]) -> usize {
    let told = told(pipes, crowd);
    assert!(
        told.iter().all(|(_, word)| word == "error_auth\n"),
        "{told:?}"
    );
    told.len()
}

fn closed(pipes: &Pipes, crowd: &[usize]) -> usize {
    let closed = crowd.iter().filter(|&&who| pipes.peer(who).is_closed());
    closed.count()
}

fn wrong_secrets(pipes: &mut Pipes) -> String {
    let asking = pipes.connect_from(OTHER);
    pipes.send(asking, RIGHT);
    let stats = pipes.ask(asking, "stats");
    let (_, after) = stats.split_once("\"wrong_secrets\":").unwrap_or_default();
    pipes.reset(asking);
    pipes.settle();
    after.chars().take_while(char::is_ascii_digit).collect()
}

/// The server neither answers nor closes before the delay is over: a close is an answer, too.
#[test]
fn wrong_secret_is_answered_after_the_delay_at_every_door() {
    const HTTP: &[u8] = b"GET /v1/locks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\n\r\n";
    for host in [GUESSING, Host::V6([1; 8]), Host::User(1000), Host::Unknown] {
        for (door, sent, half_closes) in [
            (Door::Line, WRONG, false),
            (Door::Line, WRONG, true),
            (Door::Http, HTTP, false),
            (Door::Http, HTTP, true),
        ] {
            let mut pipes = pipes();
            let who = pipes.connect_from_to(host, door);
            pipes.send(who, sent);
            if half_closes {
                pipes.half_close(who);
            }
            pipes.settle();
            pass(&mut pipes, Millis(99));
            assert_eq!(pipes.read(who), "", "{host} {door:?} {half_closes}");
            assert!(
                !pipes.peer(who).is_closed(),
                "{host} {door:?} {half_closes}"
            );
            pass(&mut pipes, Millis(1));
            let told = pipes.read(who);
            let is_told = told == "error_auth\n" || told.starts_with("HTTP/1.1 401 ");
            assert!(is_told, "{host} {door:?} {half_closes}: {told}");
        }
    }
}

#[test]
fn wrong_secret_of_a_client_is_answered_after_the_delay() {
    for half_closes in [false, true] {
        let mut pipes = pipes();
        let known = pipes.connect_from(OTHER);
        pipes.send(known, RIGHT);
        assert!(
            pipes
                .ask(known, "attach gw 10 its-own")
                .starts_with("ok\nok ")
        );
        let guessing = pipes.connect_from(GUESSING);
        pipes.send(guessing, RIGHT);
        pipes.send(guessing, b"attach\ngw\n10 guess\nping\n_\n_\n");
        if half_closes {
            pipes.half_close(guessing);
        }
        pipes.settle();
        assert_eq!(pipes.read(guessing), "ok\n");
        pass(&mut pipes, Millis(99));
        assert_eq!(pipes.read(guessing), "");
        assert!(!pipes.peer(guessing).is_closed());
        pass(&mut pipes, Millis(1));
        assert_eq!(pipes.read(guessing), "error_auth\nok\n", "it goes on");
    }
}

/// A connection is not closed for its guess, however many others guess.
#[test]
fn guess_too_many_is_not_closed_at_once() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, 1_000, WRONG);
    pipes.settle();
    assert_eq!(refused(&mut pipes, &guessing), 0);
    assert_eq!(closed(&pipes, &guessing), 0);
    for _ in 0..10 {
        pass(&mut pipes, Millis(99));
        assert_eq!(refused(&mut pipes, &guessing), 0, "before its time");
        pass(&mut pipes, Millis(1));
        assert_eq!(refused(&mut pipes, &guessing), PLACES);
    }
    assert_eq!(closed(&pipes, &guessing[10 * PLACES..]), 0);
}

/// An attacker that takes silence for a no and connects again does not free its place.
#[test]
fn guess_whose_connection_left_keeps_its_place() {
    let mut pipes = pipes();
    for _ in 0..PLACES {
        let guessing = crowd(&mut pipes, GUESSING, 1, WRONG);
        pipes.settle();
        pipes.reset(guessing[0]);
        pipes.settle();
    }
    let guessing = crowd(&mut pipes, GUESSING, 1, WRONG);
    pipes.settle();
    pass(&mut pipes, DELAY);
    assert_eq!(refused(&mut pipes, &guessing), 0);
    pass(&mut pipes, DELAY);
    assert_eq!(refused(&mut pipes, &guessing), 1);
    pass(&mut pipes, AUTH_TIMEOUT);
    assert_eq!(pipes.server.connections(), 0);
}

#[test]
fn who_knows_the_secret_is_let_in_at_once_whoever_guesses() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, 200, WRONG);
    pipes.settle();
    let neighbours = crowd(&mut pipes, GUESSING, 5, RIGHT);
    let others = crowd(&mut pipes, OTHER, 5, RIGHT);
    for &who in neighbours.iter().chain(&others) {
        pipes.send(who, b"ping\n_\n_\nl\nk\n0\n");
    }
    pipes.settle();
    for crowd in [neighbours, others] {
        let told = told(&mut pipes, &crowd);
        assert_eq!(told.len(), 5);
        assert!(
            told.iter().all(|(_, word)| word.starts_with("ok\nok\n")),
            "{told:?}"
        );
    }
    assert_eq!(refused(&mut pipes, &guessing), 0);
}

#[test]
fn what_was_sent_behind_a_wrong_secret_is_not_served() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, 1, WRONG);
    pipes.send(guessing[0], RIGHT);
    pipes.settle();
    pipes.send(guessing[0], b"ping\n_\n_\n");
    pipes.settle();
    assert_eq!(pipes.server.holdings().buffered_bytes, 0, "nothing is kept");
    pass(&mut pipes, DELAY);
    assert_eq!(pipes.read(guessing[0]), "error_auth\n");
    assert!(pipes.peer(guessing[0]).is_ended());
}

/// 16 guesses of a host are refused every 100 ms; the last of 1,000 would be refused after 6.3 s.
#[test]
fn guess_that_has_no_place_in_time_is_closed_without_a_word() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, 1_000, WRONG);
    pipes.settle();
    let mut told = 0;
    for _ in 0..49 {
        pass(&mut pipes, DELAY);
        told += refused(&mut pipes, &guessing);
    }
    assert_eq!(told, 49 * PLACES);
    assert_eq!(closed(&pipes, &guessing[told..]), 0);
    pass(&mut pipes, DELAY);
    pass(&mut pipes, DELAY);
    told += refused(&mut pipes, &guessing);
    assert!(told <= 51 * PLACES, "{told}");
    assert_eq!(closed(&pipes, &guessing[told..]), 1_000 - told);
    pass(&mut pipes, Millis::from_secs(1));
    assert_eq!(pipes.server.connections(), 0);
    assert_eq!(wrong_secrets(&mut pipes), "1000");
}

/// A token lets a connection in, and then it guesses the secret of a client.
#[test]
fn lock_of_a_client_that_guessed_and_left_is_free_without_waiting_for_a_place() {
    let mut pipes = pipes();
    let known = pipes.connect_from(OTHER);
    pipes.send(known, RIGHT);
    assert!(
        pipes
            .ask(known, "attach gw 10 its-own")
            .starts_with("ok\nok ")
    );
    let holder = pipes.connect_from(GUESSING);
    pipes.send(holder, RIGHT);
    assert!(pipes.ask(holder, "l job 0").starts_with("ok\nok "));
    crowd(&mut pipes, GUESSING, 500, WRONG);
    pipes.settle();
    assert_eq!(pipes.ask(holder, "attach gw 10 guess"), "", "it waits");
    pipes.half_close(holder);
    pipes.settle();
    let granted = pipes.ask(known, "l job 0");
    assert!(granted.starts_with("ok "), "{granted}");
    pass(&mut pipes, Millis(99));
    assert!(!pipes.peer(holder).is_closed(), "a close would tell");
    pass(&mut pipes, Millis(1));
    assert!(pipes.peer(holder).is_closed());
}

#[test]
fn half_a_request_is_no_guess_and_ends_with_the_time_to_authenticate() {
    let mut pipes = pipes();
    let slow = crowd(&mut pipes, GUESSING, 100, b"auth\n_\nhalf");
    pipes.settle();
    pass(&mut pipes, Millis(4_999));
    assert_eq!(closed(&pipes, &slow), 0);
    pass(&mut pipes, Millis(1));
    assert_eq!(closed(&pipes, &slow), 100);
    assert_eq!(refused(&mut pipes, &slow), 0);
    assert_eq!(wrong_secrets(&mut pipes), "0");
}

#[test]
fn all_hosts_together_have_so_many_guesses_and_each_gets_its_turn() {
    const HOSTS: usize = 100;
    let mut pipes = pipes();
    pipes.skip_checks();
    let host = |number: usize| Host::V6([0x20, 1, 0xd, 0xb8, 0, 0, 0, number as u8]);
    let guessing: Vec<usize> = (0..HOSTS)
        .flat_map(|number| crowd(&mut pipes, host(number), 20, WRONG))
        .collect();
    let late = crowd(&mut pipes, OTHER, 1, WRONG);
    let knowing = crowd(&mut pipes, OTHER, 1, RIGHT);
    pipes.settle();
    assert_eq!(told(&mut pipes, &knowing).len(), 1, "it needs no place");
    pass(&mut pipes, DELAY);
    for _ in 0..40 {
        pass(&mut pipes, Millis(1)); // only so many are told in one turn
    }
    assert_eq!(refused(&mut pipes, &guessing), 1_024);
    assert_eq!(refused(&mut pipes, &late), 0, "all places were taken");
    pass(&mut pipes, DELAY);
    assert_eq!(refused(&mut pipes, &late), 1, "not behind a thousand");
    for _ in 0..500 {
        pass(&mut pipes, Millis(1));
    }
    pass(&mut pipes, Millis::from_secs(1));
    assert_eq!(pipes.server.connections(), 1);
}
