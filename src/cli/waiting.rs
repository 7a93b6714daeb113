//! The one line that says, while we wait on a terminal, what for and behind whom.
//!
//! It is written to standard error, over itself, and is gone when the wait is. Where standard error is no
//! terminal nothing is written at all.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connect::Servers;
use super::duration::short;
use super::output::{cut, escaped, quoted};
use super::supervise::warden::{monotonic, timespec};
use super::task;
use crate::client::Who;

/// How long we wait before we say so: what is had at once flickers otherwise.
const SAID_AFTER: Duration = Duration::from_millis(150);
/// How often the line is written anew.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// A line that is there or is not.
pub(crate) struct WaitingLine {
    since: Duration,
    terminal: bool,
    shown: bool,
}

impl WaitingLine {
    pub(crate) fn new() -> Self {
        Self {
            since: monotonic(),
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// Shows what `text` says, if it is time for it. For `task::wait`.
    pub(crate) fn tick(&mut self, last: bool, text: impl FnOnce() -> String) -> Option<Duration> {
        if !self.terminal {
            return None;
        }
        if last {
            self.clear();
            return None;
        }
        let waited = monotonic().saturating_sub(self.since);
        if waited < SAID_AFTER {
            return Some(SAID_AFTER.saturating_sub(waited));
        }
        let columns = match rustix::termios::tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
            _ => 80, // it does not say
        };
        let waited = short(waited.as_secs_f64());
        let text = cut(&format!("{} ({waited})", text()), columns.saturating_sub(1));
        // At once, so that nobody sees half of it.
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        self.shown = true;
        Some(EVERY)
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = io::stderr().write_all(b"\r\x1b[K");
            self.shown = false;
        }
    }
}

/// What is waited for, and what we are called in the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    pub(crate) name: String,
}

/// Asks who has it, again and again, on a thread of its own: a server that is slow to answer keeps nobody from hearing
/// Ctrl-C.
pub(crate) struct Watcher {
    servers: Servers,
    place: Arc<Mutex<Place>>,
    /// What it has found out; there once it was asked for.
    found: Option<Arc<Mutex<String>>>,
}

impl Watcher {
    pub(crate) fn new(servers: Servers, place: Arc<Mutex<Place>>) -> Self {
        Self {
            servers,
            place,
            found: None,
        }
    }

    /// What is known by now.
    pub(crate) fn text(&mut self) -> String {
        let found = match &self.found {
            Some(found) => Arc::clone(found),
            None => self.start(),
        };
        let text = locked(&found).clone();
        match text.is_empty() {
            false => format!("latch: {text}"),
            true => match locked(&self.place).key.as_slice() {
                b"" => format!("latch: waiting for {}", self.servers.list()),
                key => format!("latch: waiting for {}", quoted(key)),
            },
        }
    }

    fn start(&mut self) -> Arc<Mutex<String>> {
        let found = Arc::new(Mutex::new(String::new()));
        self.found = Some(Arc::clone(&found));
        let (servers, place) = (self.servers.clone(), Arc::clone(&self.place));
        let theirs = Arc::clone(&found);
        // If there is no thread to be had, the line says a little less.
        let _ = task::spawn(move || {
            let Ok(client) = servers.client() else {
                return;
            };
            loop {
                let place = locked(&place).clone();
                if !place.key.is_empty()
                    && let Ok(who) = client.who(&place.key)
                {
                    *locked(&theirs) = told(&place, &who);
                }
                let _ = rustix::event::poll(&mut [], Some(&timespec(EVERY / 2)));
            }
        });
        found
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `'nightly' is held by alice@db1:4711 for 3m07s; you are next`.
fn told(place: &Place, who: &Who) -> String {
    let holders = holders(who).unwrap_or_else(|| "about to be yours".to_owned());
    let ours = |waiter: &&crate::client::Waiter| waiter.name.as_deref() == Some(&place.name);
    let position = who.waiters.iter().find(ours).map(|waiter| waiter.position);
    let place_in_line = match position {
        Some(1) => "; you are next".to_owned(),
        Some(position) => format!("; you are number {position} of {}", who.waiter_count),
        None => String::new(),
    };
    format!("{} is {holders}{place_in_line}", quoted(&place.key))
}

/// `held by alice@db1:4711 for 3m07s`; `None` if nobody has it.
pub(crate) fn holders(who: &Who) -> Option<String> {
    let first = who.holders.first()?;
    let name = [&first.name, &first.client, &first.address];
    let name = name.into_iter().flatten().next();
    let name = name.map_or_else(|| "somebody".to_owned(), |name| escaped(name.as_bytes()));
    let since = short(first.since_s);
    let others = match who.holder_count {
        0 | 1 => String::new(),
        2 => " and another one".to_owned(),
        count => format!(" and {} others", count - 1),
    };
    Some(format!("held by {name} for {since}{others}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Holder, Waiter};

    #[test]
    fn the_line_says_who_since_when_and_where_we_are() {
        let mut who = Who::default();
        let place = Place {
            key: b"nightly".to_vec(),
            name: "me@here:1".to_owned(),
        };
        assert_eq!(told(&place, &who), "'nightly' is about to be yours");
        who.holders.push(Holder {
            name: Some("alice\u{1b}[2J".to_owned()),
            since_s: 187.2,
            ..Holder::default()
        });
        who.holder_count = 1;
        who.waiters.push(Waiter {
            position: 1,
            name: Some("me@here:1".to_owned()),
            ..Waiter::default()
        });
        who.waiter_count = 4;
        assert_eq!(
            told(&place, &who),
            "'nightly' is held by alice\\x1b[2J for 3m07s; you are next"
        );
        who.waiters[0].position = 3;
        who.holder_count = 3;
        let line = told(&place, &who);
        assert!(
            line.contains("and 2 others; you are number 3 of 4"),
            "{line}"
        );
    }
}
