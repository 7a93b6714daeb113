//! TLS over any [`Transport`](crate::server::Transport): sockets in the daemon, pipes in tests.
//!
//! The session is a transport itself, so the server reads and writes as without it: in the same loop,
//! without a thread, and never waiting. `keys.rs` makes of the operator's files what newcomers are
//! offered, `session.rs` is one connection, `records.rs` counts what a peer sends, and `validity.rs`
//! reads how long a certificate is good for. `trust.rs` is the other side: what the daemon shows and
//! whom it trusts where it is a client itself. Knows neither sockets nor files nor the clock.

mod keys;
mod maybe;
mod records;
mod session;
mod trust;
mod validity;

pub use self::keys::{Fault, Files, Keys, Offer, Terms, Validity};
pub use self::maybe::MaybeTls;
pub use self::session::{HANDSHAKE_BYTES_MAX, SESSION_BYTES, Tls};
pub use self::trust::{Trust, TrustFault, TrustFiles};
