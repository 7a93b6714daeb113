//! The write timeout, to the second: what counts is that everything owed is taken in time, not that
//! something is taken now and then.

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::Settings;

const WRITE_TIMEOUT_S: u64 = 5;
const PING: &[u8] = b"ping\n_\n\n";

/// The only peer.
const PEER: usize = 0;

/// A server and one peer that takes only so many bytes before it reads again.
fn pipes(room: usize) -> Pipes {
    let settings = Settings {
        write_timeout: Millis::from_secs(WRITE_TIMEOUT_S),
        ..Settings::default()
    };
    let mut pipes = Pipes::with(Rules::default(), settings);
    pipes.connect_with_room(room);
    pipes
}

fn ask(pipes: &mut Pipes, pings: usize) {
    pipes.send(PEER, &PING.repeat(pings));
    pipes.turn();
}

/// A second passes, then the peer reads what it has room for.
fn read_after_a_second(pipes: &mut Pipes) -> usize {
    pipes.pass(Millis::from_secs(1));
    pipes.turn();
    let taken = pipes.read(PEER).len();
    pipes.turn();
    taken
}

fn is_closed(pipes: &Pipes) -> bool {
    pipes.peer(PEER).is_closed()
}

#[test]
fn a_trickle_does_not_extend_the_time_to_read() {
    let mut pipes = pipes(4);
    ask(&mut pipes, 10); // 30 bytes, at 4 a second
    for second in 1..WRITE_TIMEOUT_S {
        read_after_a_second(&mut pipes);
        assert!(!is_closed(&pipes), "cut off after {second} s");
    }
    read_after_a_second(&mut pipes);
    assert!(is_closed(&pipes), "still there after {WRITE_TIMEOUT_S} s");
}

#[test]
fn a_client_that_always_takes_what_it_was_owed_in_time_may_lag_for_ever() {
    let mut pipes = pipes(15);
    ask(&mut pipes, 10);
    let mut taken = 0;
    for _ in 0..60 {
        ask(&mut pipes, 5); // as much as it reads in a second: it never catches up
        taken += read_after_a_second(&mut pipes);
        assert!(!is_closed(&pipes), "cut off after {taken} bytes");
    }
    assert_eq!(taken, 60 * 15);
}

#[test]
fn a_server_that_was_stopped_does_not_blame_its_peer() {
    // It has room for all of the rest then, or for some.
    for pings in [10, 15] {
        let mut pipes = pipes(15);
        ask(&mut pipes, pings);
        assert_eq!(pipes.read(PEER).len(), 15); // in time, but the server does not come round
        pipes.pass(Millis::from_secs(60));
        pipes.turn();
        assert_eq!(pipes.read(PEER).len(), 15);
        assert!(!is_closed(&pipes), "{pings} pings");
    }
}
