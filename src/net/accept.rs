//! Accepting connections: how many in one turn, and what happens when descriptors run out (EMFILE).
//!
//! A connection that is not accepted yet waits in the listener's backlog, which the kernel keeps;
//! accepting pauses and goes on without losing it. The reactor says when: at the end of its turn.

use std::io::{self, ErrorKind};

use log::{error, warn};
use mio::{Interest, Poll};

use super::reactor::token;
use super::{Listener, Stream};
use crate::base::{Millis, Nanos};
use crate::server::Server;

/// Most connections accepted from one listener in one turn.
const ACCEPTS_PER_TURN_MAX: u32 = 256;

/// How long accepting pauses when descriptors have run out: doubled up to the second figure.
pub(super) const ACCEPT_PAUSE_MIN: Millis = Millis(5);
const ACCEPT_PAUSE_MAX: Millis = Millis(1_000);

/// A listener and how accepting from it goes.
pub(super) struct Door {
    pub(super) listener: Listener,
    /// Somebody may be waiting.
    pub(super) ready: bool,
    /// Descriptors have run out: not before this.
    pub(super) not_before: Nanos,
    pub(super) pause: Millis,
}

pub(super) fn accept(doors: &mut [Door], server: &mut Server<Stream>, poll: &Poll, now: Nanos) {
    for door in doors {
        let mut accepts_left = ACCEPTS_PER_TURN_MAX;
        while door.ready && door.not_before <= now && accepts_left > 0 {
            accepts_left -= 1;
            match door.listener.accept() {
                Ok(stream) => {
                    door.pause = ACCEPT_PAUSE_MIN;
                    welcome(server, poll, now, stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => door.ready = false,
                // The peer was gone before we got to it.
                Err(error) if is_of_one_peer(&error) => {}
                Err(error) => {
                    // Descriptors or memory. The peers stay in the backlog meanwhile.
                    if door.pause == ACCEPT_PAUSE_MIN {
                        warn!("cannot accept on {}: {error}; trying on", door.listener);
                    }
                    door.not_before = now.after(door.pause);
                    door.pause = Millis(door.pause.0 * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }
}

/// Takes a connection in, or lets it fall if there is no room.
fn welcome(server: &mut Server<Stream>, poll: &Poll, now: Nanos, stream: Stream) {
    let Some(id) = server.accept(now, stream) else {
        return;
    };
    let registered = server.transport_mut(id).map(|stream| {
        poll.registry()
            .register(stream, token(id), Interest::READABLE)
    });
    if let Some(Err(error)) = registered {
        error!("cannot listen to connection {}: {error}", id.serial);
        server.lose(now, id);
    }
}

/// Errors of `accept` that concern one peer and are over with it.
fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
