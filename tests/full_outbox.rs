//! Answers that together are more than an outbox takes: the client that reads gets them all.

use latchd::base::Nanos;
use latchd::engine::{Engine, Origin, Rules};
use latchd::server::{Server, Settings};
use latchd::sim::pipe;

/// Five long answers fill the outbox while whole frames are still waiting behind them. The socket
/// takes everything at once, so nothing more is ever reported: the server has to remember.
#[test]
fn frames_behind_a_full_outbox_are_served_once_it_is_empty() {
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        chance: Box::new(|| 0),
    };
    let engine = Engine::new(Rules::default(), origin);
    let mut server = Server::new(Settings::default(), engine);
    let (server_end, peer) = pipe(1);
    let mut now = Nanos(1);
    let id = server.accept(now, server_end).expect("there is room");
    let mut heard = Vec::new();
    let mut say = |frames: &[u8], heard: &mut Vec<u8>| {
        peer.send(frames);
        peer.arrive(frames.len());
        server.readable(now, id);
        server.finish_turn(now);
        heard.extend(peer.receive());
        // Only as long as the server itself says that it has more to do.
        while server.next_deadline().is_some_and(|at| at <= now) {
            now.0 += 1;
            server.finish_turn(now);
            heard.extend(peer.receive());
        }
    };
    let value = vec![b'v'; 60_000];
    say(&[b"kset\nk\n", &value[..], b"\n"].concat(), &mut heard);
    assert_eq!(heard, b"ok\n");
    heard.clear();
    let mut frames = b"kget\nk\n\n".repeat(20);
    frames.extend(b"ping\n_\n\n");
    say(&frames, &mut heard);
    let lines = heard.split(|&byte| byte == b'\n').count() - 1;
    assert_eq!(lines, 21, "answers to 21 questions");
    assert!(heard.ends_with(b"\nok\n"));
}
