//! Something that takes its time (connecting, waiting for a lock) on a thread of its own, while the main thread
//! hears signals and shows how it goes.
//!
//! The main thread is the parent of every command, which dies when its parent thread does; so it never is
//! the one that waits for others.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::signals::Signals;
use super::warden::timespec;
use crate::cli::exit::Fail;
use crate::cli::sys::spawn;

/// Why it was not waited for.
pub(crate) enum Unfinished {
    /// A signal that ends us came first.
    Signal(Signal),
    /// It cannot have a result any more.
    Failed(Fail),
}

/// Runs `work`, and waits for what it gives. `tick` is called at once and then about as often as it says, with
/// whether it is the last time: then everything that it has shown has to go.
pub(crate) fn wait<T: Send + 'static>(
    signals: &mut Signals,
    work: impl FnOnce() -> T + Send + 'static,
    mut tick: impl FnMut(bool) -> Option<Duration>,
) -> Result<T, Unfinished> {
    let failed = |error: rustix::io::Errno| Unfinished::Failed(Fail::system("wait", error));
    let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
    let (sender, results) = channel();
    let bell = ready.try_clone();
    let bell = bell.map_err(|error| Unfinished::Failed(Fail::system("wait", error)))?;
    spawn(move || {
        let _ = sender.send(work());
        ring(&bell);
    })
    .map_err(Unfinished::Failed)?;
    let end = loop {
        if let Some(result) = poll_once(&results) {
            break result;
        }
        let pause = tick(false).map(timespec);
        let mut events = [
            PollFd::new(&*signals, PollFlags::IN),
            PollFd::new(&ready, PollFlags::IN),
        ];
        let _ = poll(&mut events, pause.as_ref());
        if let Some(signal) = heard(signals, &mut tick) {
            // The work may have been done in the same moment. Then there is something to undo.
            match poll_once(&results) {
                Some(Ok(result)) => {
                    signals.put_back(signal);
                    break Ok(result);
                }
                _ => break Err(Unfinished::Signal(signal)),
            }
        }
    };
    tick(true);
    end
}

fn poll_once<T>(results: &Receiver<T>) -> Option<Result<T, Unfinished>> {
    match results.try_recv() {
        Ok(result) => Some(Ok(result)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => {
            let fail = Fail::system("wait", "the thread that waited is gone");
            Some(Err(Unfinished::Failed(fail)))
        }
    }
}

/// A signal that ends us, if there is one. One that stops us does.
fn heard(signals: &mut Signals, tick: &mut impl FnMut(bool) -> Option<Duration>) -> Option<Signal> {
    while let Some(signal) = signals.next() {
        match signal {
            Signal::SIGTSTP => {
                tick(true);
                signals.suffer(signal);
            }
            Signal::SIGCHLD | Signal::SIGCONT | Signal::SIGWINCH => {}
            signal => return Some(signal),
        }
    }
    None
}

/// Makes whoever polls it look.
pub(crate) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell.as_fd(), &1_u64.to_ne_bytes());
}
