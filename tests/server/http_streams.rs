//! Streams of events over HTTP that have nothing to tell: the server sleeps until they do.

use latch_sim::pipe::{ORIGIN, pipe};
use latchd::base::{Millis, Nanos};
use latchd::engine::{Engine, Rules};
use latchd::server::{Door, Event, Host, Readiness, Server, Settings};

/// Opens a stream, lets three minutes pass, and says how many turns the server took, and what the
/// client read.
fn turns_of_a_silent_stream(path: &str, hangs_up: bool) -> (u32, String) {
    // Shorter than what passes between two signs of life.
    let settings = Settings {
        read_timeout: Millis(5_000),
        ..Settings::default()
    };
    let mut server = Server::new(settings, Engine::new(Rules::default(), ORIGIN));
    let (here, peer) = pipe(1, Host::User(1));
    let mut now = Nanos(1);
    let conn = server
        .accept_at(now, here, Door::Http)
        .expect("there is room");
    peer.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    peer.arrive(usize::MAX);
    let readiness = Readiness {
        readable: true,
        ..Readiness::default()
    };
    let heard = Event { conn, readiness };
    server.turn(&|| now, std::iter::once(heard), 0);
    let mut told = String::from_utf8(peer.receive()).expect("text");
    if hangs_up {
        peer.close();
        server.turn(&|| now, std::iter::once(heard), 0);
    }
    let mut turns = 0;
    while turns < 1_000
        && let Some(at) = server.next_deadline().filter(|at| at.0 < 180_000_000_000)
    {
        now = Nanos(now.0 + 1).max(at);
        server.turn(&|| now, std::iter::empty(), 0);
        told.push_str(&String::from_utf8(peer.receive()).expect("text"));
        turns += 1;
    }
    (turns, told)
}

#[test]
fn a_stream_that_is_told_nothing_beats_every_fifteen_seconds_and_no_more() {
    let (turns, told) = turns_of_a_silent_stream("/v1/watch?pattern=a", false);
    assert_eq!(told.matches(": beat").count(), 11, "{told}");
    assert!(turns < 100, "{turns} turns in three minutes");
}

#[test]
fn a_stream_of_figures_tells_them_every_second_and_no_more() {
    let (turns, told) = turns_of_a_silent_stream("/v1/stats/stream", false);
    assert_eq!(told.matches("event: stats").count(), 180);
    assert!(turns < 400, "{turns} turns in three minutes");
}

#[test]
fn a_stream_whose_reader_has_left_is_over() {
    let (turns, _) = turns_of_a_silent_stream("/v1/watch?pattern=a", true);
    assert!(turns < 100, "{turns} turns after its end");
}
