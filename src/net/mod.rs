//! File descriptors and the clock: the only layer that knows either.
//!
//! It brings bytes and the time to `server` and never looks inside a request.

mod accept;
mod clock;
mod listener;
mod lock_file;
mod reactor;
mod socket;
#[cfg(feature = "tls")]
mod stream;

pub use self::clock::{Clock, boot_time};
pub use self::listener::Listener;
pub(crate) use self::lock_file::check_lock_beside;
pub use self::reactor::{Between, Reactor, Remote, RunError, Seen};
pub use self::socket::Socket;
#[cfg(feature = "tls")]
pub use self::stream::Stream;

/// One accepted connection: without the feature `tls` there is nothing over its socket.
#[cfg(not(feature = "tls"))]
pub type Stream = Socket;
