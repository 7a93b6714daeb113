//! What piles up on either side of a connection is worked off, however long it takes the server.

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::Settings;

/// The only client. It reads everything at once.
const CLIENT: usize = 0;

fn pipes() -> Pipes {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    pipes.connect();
    pipes.move_clock_when_looked_at(1);
    pipes
}

/// Lets bytes arrive and the server take turns, only as long as it says that it has more to do.
fn say(pipes: &mut Pipes, bytes: &[u8]) -> String {
    pipes.send(CLIENT, bytes);
    pipes.settle();
    pipes.read(CLIENT)
}

/// Five long answers fill the outbox while whole frames are still waiting behind them. The socket
/// takes everything at once, so nothing more is ever reported: the server has to remember.
#[test]
fn frames_behind_a_full_outbox_are_served_once_it_is_empty() {
    let mut pipes = pipes();
    let value = vec![b'v'; 60_000];
    let heard = say(&mut pipes, &[b"kset\nk\n", &value[..], b"\n"].concat());
    assert_eq!(heard, "ok\n");
    let mut frames = b"kget\nk\n\n".repeat(20);
    frames.extend(b"ping\n_\n\n");
    let heard = say(&mut pipes, &frames);
    assert_eq!(heard.lines().count(), 21, "answers to 21 questions");
    assert!(heard.ends_with("\nok\n"));
}

/// The server is stopped for longer than the read timeout. The rest of the frame has been there all
/// the time, but is more than one turn reads: that the line is late is not the client's fault.
#[test]
fn a_frame_that_has_arrived_is_read_before_its_client_is_called_late() {
    let mut pipes = pipes();
    assert_eq!(say(&mut pipes, b"kset\nk\nvv"), "");
    pipes.pass(Millis::from_secs(40));
    let rest = [&[b'v'; 60_000][..], b"\n"].concat();
    assert_eq!(say(&mut pipes, &rest), "ok\n");
    assert!(!pipes.peer(CLIENT).is_ended());
}
