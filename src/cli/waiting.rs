//! The one line that says, while we wait on a terminal, what for and behind whom.
//!
//! It is written to standard error, over itself, and is gone when the wait is. Where standard error is no
//! terminal nothing is written at all.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::args::Patience;
use super::connect::fail;
use super::duration::short;
use super::exit::{Exit, Fail};
use super::output::{cut, escaped, quoted};
use super::sys::{self, spawn};
use crate::client::{Error, Reason, Reply, Who};
use crate::uptime;

/// How long we wait before we say so: what is had at once flickers otherwise.
const SAID_AFTER: Duration = Duration::from_millis(150);
/// How often the line is written anew, and how often in the first moments: nobody has looked yet then.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
const EVERY_AT_FIRST: Duration = Duration::from_millis(100);
const AT_FIRST: Duration = Duration::from_secs(1);

/// The longest wait that the protocol can say.
const FOREVER_S: &str = "9223372036";

/// A line that is there or is not.
pub(crate) struct WaitingLine {
    since: Duration,
    terminal: bool,
    shown: bool,
}

impl WaitingLine {
    pub(crate) fn new() -> Self {
        Self {
            since: uptime::uptime(),
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
        let waited = uptime::uptime().saturating_sub(self.since);
        if waited < SAID_AFTER {
            return Some(SAID_AFTER.saturating_sub(waited));
        }
        let columns = sys::columns().unwrap_or(80);
        let since = short(waited.as_secs_f64());
        let text = cut(&format!("{} ({since})", text()), columns.saturating_sub(1));
        // At once, so that nobody sees half of it.
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        self.shown = true;
        Some(match waited < AT_FIRST {
            true => EVERY_AT_FIRST,
            false => EVERY,
        })
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

/// What a look has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// This is what is to be read.
    Text(String),
    /// The server of this name says nothing.
    Silent(String),
}

/// Looks who has it, again and again, on a thread of its own: a server that is slow to answer keeps nobody from hearing
/// Ctrl-C.
pub(crate) struct Watcher {
    /// What there is to be said before anybody has looked.
    plain: Box<dyn Fn() -> String>,
    /// Until the thread has it.
    look: Option<Look>,
    found: Arc<Mutex<Option<Seen>>>,
}

/// One look; `None` if there is nothing to be looked at yet.
type Look = Box<dyn FnMut() -> Option<Seen> + Send>;

impl Watcher {
    pub(crate) fn new(
        plain: impl Fn() -> String + 'static,
        look: impl FnMut() -> Option<Seen> + Send + 'static,
    ) -> Self {
        Self {
            plain: Box::new(plain),
            look: Some(Box::new(look)),
            found: Arc::default(),
        }
    }

    /// What is known by now. With the first question the looking begins.
    pub(crate) fn text(&mut self) -> String {
        if let Some(look) = self.look.take() {
            let found = Arc::clone(&self.found);
            // If there is no thread to be had, the line says a little less.
            let _ = spawn(move || watch(look, &found));
        }
        let plain = &self.plain;
        match &*locked(&self.found) {
            Some(Seen::Text(text)) => format!("latch: {text}"),
            Some(Seen::Silent(server)) => {
                let server = escaped(server.as_bytes());
                format!(
                    "latch: {}: {server} does not answer, and is asked again",
                    plain()
                )
            }
            None => format!("latch: {}", plain()),
        }
    }
}

fn watch(mut look: Look, found: &Mutex<Option<Seen>>) {
    loop {
        let seen = look();
        let pause = match seen {
            Some(_) => EVERY / 2,
            None => EVERY_AT_FIRST,
        };
        if seen.is_some() {
            *locked(found) = seen;
        }
        uptime::pause(pause);
    }
}

/// How long after a server could not be asked it is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Asks for something that the server has wait, and goes on through its restart or a failover: after an error that
/// passes it asks again, for the rest of the time. A server that cannot be reached at first is not waited for.
pub(crate) fn ask(
    patience: Patience,
    passes: impl Fn(&Error) -> bool,
    ask: impl Fn(&str) -> Result<Reply, Error>,
) -> Result<Reply, Error> {
    let end = match patience {
        Patience::None => Some(Duration::ZERO),
        Patience::For(wait) => Some(uptime::uptime().saturating_add(wait)),
        Patience::Forever => None,
    };
    let left = || end.map(|end| end.saturating_sub(uptime::uptime()));
    let mut is_first = true;
    loop {
        let wait = left().map_or_else(
            || FOREVER_S.to_owned(),
            |left| format!("{}ms", left.as_millis()),
        );
        match ask(&wait) {
            Err(error @ Error::Down { .. }) if is_first => return Err(error),
            Err(error) if passes(&error) && left() != Some(Duration::ZERO) => {
                is_first = false;
                uptime::pause(ASK_AGAIN_AFTER);
            }
            result => return result,
        }
    }
}

/// What may be over when one asks again: a connection that broke, a server that stops, starts or fails over. To ask
/// again for bytes that are held changes nothing, so a lost answer is no harm.
pub(crate) fn is_passing(error: &Error) -> bool {
    has_done_nothing(error) || matches!(error, Error::Unknown { .. })
}

/// The bytes are kept for clients that held them before a restart.
pub(crate) fn is_kept_for_others(error: &Error) -> bool {
    matches!(error, Error::Refused(it) if matches!(it.reason(), Reason::Grace(_)))
}

/// Whether a request that failed so has surely done nothing, and may succeed later: the server is not there, stops, or
/// keeps the bytes for clients from before its restart.
pub(crate) fn has_done_nothing(error: &Error) -> bool {
    match error {
        Error::Down { .. } => true,
        Error::Refused(refusal) => {
            matches!(refusal.reason(), Reason::Draining | Reason::Grace(_))
        }
        _ => false,
    }
}

/// The error of a request that cannot be asked again, since its answer may be the one that was lost.
pub(crate) fn ambiguous(error: Error, what: &str) -> Fail {
    match error {
        Error::Unknown { .. } => {
            let said = escaped(error.to_string().as_bytes());
            Fail::new(Exit::UNREACHABLE, format!("{said}. Before that {what}"))
        }
        error => fail(error),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `'nightly' is held by alice@db1:4711 for 3m07s; you are next`.
pub(crate) fn told(place: &Place, who: &Who) -> String {
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
            "'nightly' is held by alice\\u{1b}[2J for 3m07s; you are next"
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
