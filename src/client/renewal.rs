//! What is said to a server about something that is held: start its lease again, let it go, and whether the server is there.

use super::conn::Conn;
use super::error::Lost;
use super::hold::Hold;
use crate::engine::types::{Mode, Request};
use crate::wire::client::push_request;
use crate::wire::command::Command;

/// Asks for the lease again.
pub(super) fn renew(conn: &mut Conn, hold: &Hold) {
    let mut frame = Vec::new();
    let request = Request::Renew {
        key: &hold.key,
        token: Some(hold.token),
        lease: Some(hold.lease()),
    };
    match push_request(&mut frame, &Command::Engine(request)) {
        Ok(verb) => conn.send(&frame, verb),
        // It was spelled when it was asked for, so this cannot be. What cannot be renewed is lost.
        Err(_) => hold.lose(Lost::Forgotten),
    }
}

/// Asks whether the server is still there, and our connection with it.
pub(super) fn check(conn: &mut Conn) {
    let mut frame = Vec::new();
    // It has nothing in it that could not be said.
    if let Ok(verb) = push_request(&mut frame, &Command::Ping) {
        conn.send(&frame, verb);
    }
}

/// How a grant is let go.
pub(super) fn release_command(hold: &Hold) -> Command<'_> {
    let (key, token) = (&*hold.key, Some(hold.token));
    Command::Engine(match hold.mode {
        Mode::Lead => Request::Resign { key, token },
        _ => Request::Release { key, token },
    })
}
