//! Guessing the secret: how often a host is told, and that nobody who knows it pays for that. Over pipes,
//! with virtual time; `scripts/auth.txt` has what one client sees, `daemon/auth.rs` real sockets.

use latchd::access::Access;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::pipe::Pipes;
use latchd::server::{Host, Settings};

const WRONG: &[u8] = b"auth\n_\nguess\n";
const RIGHT: &[u8] = b"auth\n_\ns3cret\n";

/// How long a wrong secret takes a place.
const DELAY: Millis = Millis(100);

/// Places of a host, and how many more connections of it may wait for one.
const PLACES: usize = 16;
const WAITING: usize = 64;

const GUESSING: Host = Host::V4([192, 0, 2, 1]);
const OTHER: Host = Host::V4([192, 0, 2, 2]);

fn pipes() -> Pipes {
    with_read_timeout(Millis::from_secs(23))
}

fn with_read_timeout(read_timeout: Millis) -> Pipes {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        read_timeout,
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

#[test]
fn a_host_has_so_many_guesses_in_a_while_however_many_connections_it_makes() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, 1_000, WRONG);
    pipes.settle();
    assert_eq!(refused(&mut pipes, &guessing), PLACES);
    assert_eq!(
        closed(&pipes, &guessing),
        1_000 - PLACES - WAITING,
        "one too many is closed without a word"
    );
    for _ in 0..WAITING / PLACES {
        pass(&mut pipes, Millis(99));
        assert_eq!(refused(&mut pipes, &guessing), 0, "before its time");
        pass(&mut pipes, Millis(1));
        assert_eq!(refused(&mut pipes, &guessing), PLACES);
    }
    pass(&mut pipes, DELAY);
    assert_eq!(closed(&pipes, &guessing), 1_000);
    assert_eq!(wrong_secrets(&mut pipes), "1000");
}

#[test]
fn who_leaves_after_a_wrong_secret_does_not_guess_again_any_sooner() {
    let mut pipes = pipes();
    let mut guesses = 0;
    for _ in 0..200 {
        let guessing = crowd(&mut pipes, GUESSING, 1, WRONG);
        pipes.settle();
        guesses += refused(&mut pipes, &guessing);
        pipes.reset(guessing[0]);
        pipes.settle();
    }
    assert_eq!(guesses, PLACES);
    assert_eq!(
        pipes.server.connections(),
        0,
        "of those who left nobody waits"
    );
    pass(&mut pipes, DELAY);
    let guessing = crowd(&mut pipes, GUESSING, PLACES, WRONG);
    pipes.settle();
    assert_eq!(refused(&mut pipes, &guessing), PLACES);
}

#[test]
fn who_knows_the_secret_is_let_in_at_once_whoever_guesses() {
    let mut pipes = pipes();
    let guessing = crowd(&mut pipes, GUESSING, PLACES + WAITING + 100, WRONG);
    pipes.settle();
    assert_eq!(refused(&mut pipes, &guessing), PLACES);
    assert_eq!(
        closed(&pipes, &guessing),
        100,
        "all places to wait are taken"
    );
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
    crowd(&mut pipes, GUESSING, PLACES, WRONG);
    let waiting = crowd(&mut pipes, GUESSING, 1, WRONG);
    pipes.send(waiting[0], RIGHT);
    pipes.settle();
    pipes.send(waiting[0], b"ping\n_\n_\n");
    pipes.settle();
    assert_eq!(pipes.read(waiting[0]), "");
    pass(&mut pipes, DELAY);
    assert_eq!(pipes.read(waiting[0]), "error_auth\n");
    pass(&mut pipes, DELAY);
    assert_eq!(closed(&pipes, &waiting), 1);
}

#[test]
fn whoever_is_not_told_is_closed_at_its_read_timeout_whatever_it_sends() {
    let mut pipes = with_read_timeout(Millis(80));
    crowd(&mut pipes, GUESSING, PLACES, WRONG);
    let waiting = crowd(&mut pipes, GUESSING, 1, WRONG);
    pipes.settle();
    pass(&mut pipes, Millis(79));
    pipes.send(waiting[0], b"ping\n_\n_\n");
    pipes.settle();
    assert_eq!(closed(&pipes, &waiting), 0);
    pass(&mut pipes, Millis(1));
    assert_eq!(pipes.read(waiting[0]), "");
    assert_eq!(closed(&pipes, &waiting), 1);
}

#[test]
fn whoever_leaves_while_it_waits_keeps_nobody_waiting() {
    let mut pipes = pipes();
    crowd(&mut pipes, GUESSING, PLACES, WRONG);
    let leaving = crowd(&mut pipes, GUESSING, WAITING, WRONG);
    pipes.settle();
    for &who in &leaving {
        pipes.half_close(who);
    }
    pipes.settle();
    assert_eq!(closed(&pipes, &leaving), WAITING);
    let patient = crowd(&mut pipes, GUESSING, WAITING, WRONG);
    // One that has already left when it would have to wait.
    let gone = crowd(&mut pipes, GUESSING, 1, WRONG);
    pipes.half_close(gone[0]);
    pipes.settle();
    assert_eq!(closed(&pipes, &gone), 1);
    for _ in 0..WAITING / PLACES {
        pass(&mut pipes, DELAY);
        assert_eq!(refused(&mut pipes, &patient), PLACES);
    }
    let shown = PLACES + 2 * WAITING + 1;
    assert_eq!(wrong_secrets(&mut pipes), shown.to_string());
}

#[test]
fn half_a_request_from_many_is_refused_to_as_many_as_have_a_place() {
    let mut pipes = pipes();
    let slow = crowd(&mut pipes, GUESSING, 100, b"auth\n_\nhalf");
    pipes.settle();
    pass(&mut pipes, Millis::from_secs(23));
    assert_eq!(refused(&mut pipes, &slow), PLACES);
    assert_eq!(closed(&pipes, &slow), 100 - PLACES);
    pass(&mut pipes, DELAY);
    assert_eq!(pipes.server.connections(), 0);
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
    pipes.settle();
    assert_eq!(refused(&mut pipes, &guessing), 1_024);
    let late = crowd(&mut pipes, OTHER, 1, WRONG);
    let knowing = crowd(&mut pipes, OTHER, 1, RIGHT);
    pipes.settle();
    assert_eq!(refused(&mut pipes, &late), 0, "all places are taken");
    assert_eq!(told(&mut pipes, &knowing).len(), 1, "which it needs not");
    pass(&mut pipes, DELAY);
    for _ in 0..4 {
        pass(&mut pipes, Millis(1)); // only so many are told in one turn
    }
    assert_eq!(refused(&mut pipes, &late), 1, "not behind a thousand");
    for _ in 0..500 {
        pass(&mut pipes, Millis(1));
    }
    assert_eq!(pipes.server.connections(), 1);
}
