//! What differs between systems: how a socket is made, and what the renewal thread waits in.
//!
//! `unix` and `windows` make sockets. A [`Poller`] waits for all connections that the renewal thread keeps,
//! and can be woken: `epoll` on Linux, `polls` elsewhere. Each connection has a number there.

#[cfg(target_os = "linux")]
mod epoll;
#[cfg(not(target_os = "linux"))]
mod polls;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use self::epoll::Poller;
#[cfg(not(target_os = "linux"))]
pub(super) use self::polls::Poller;
#[cfg(unix)]
pub(super) use self::unix::{UnixStream, begin, open_tcp, open_unix};
#[cfg(windows)]
pub(super) use self::windows::{UnixStream, begin, open_tcp, open_unix};
