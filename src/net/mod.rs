//! File descriptors and the clock: the only layer that knows either.
//!
//! It brings bytes and the time to `server` and never looks inside a request.

mod accept;
mod clock;
mod listener;
mod lock_file;
mod reactor;
mod stream;

pub use self::clock::Clock;
pub use self::listener::Listener;
pub use self::reactor::{Reactor, Remote, RunError, Seen};
pub use self::stream::Stream;
