//! The process that made a client. A forked child has a copy of the client, and must not use it.
//!
//! The child shares sockets and the `epoll` with its parent, and its copies of mutexes may be
//! locked by threads that it does not have. So the child closes descriptors at most: it sends
//! nothing, and waits for no mutex of the parent.
//!
//! The check is by process id. A child that is process 1 of a new pid namespace is not told apart
//! from a parent that is process 1 of its own.

use std::process;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    pid: u32,
}

impl Default for Maker {
    fn default() -> Self {
        Self::this()
    }
}

impl Maker {
    /// The process that runs this.
    pub(crate) fn this() -> Self {
        Self { pid: process::id() }
    }

    /// Whether it is the process that runs this, and not one that this process was forked from.
    pub(crate) fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Refuses a call in a forked child, with a sentence that says why.
    pub(crate) fn check(self) -> Result<(), String> {
        match self.is_this() {
            true => Ok(()),
            false => Err(format!(
                "this process was forked from process {}, which has this client and its connections: make a new client here",
                self.pid
            )),
        }
    }
}
