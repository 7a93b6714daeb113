//! What a client that outlives its connections says of itself: a part of the engine's vocabulary
//! (`types.rs`).
//!
//! Types only. `clients.rs` keeps the clients, and `secret.rs` knows their secrets again.

use std::fmt;

use crate::base::Millis;

/// What a connection that attaches has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// The id of the client. What stands before the first `/` names its adapter, unless `adapter` does.
    pub id: &'a str,
    /// What kind of adapter the client is one of, if it says so.
    pub adapter: Option<&'a str>,
    /// How long the client is kept while it has no connection; 0 is not at all.
    pub ttl: Millis,
    /// What the client has to show when it comes back.
    pub secret: Secret<'a>,
}

/// The adapter of clients that name none, neither in their id nor otherwise.
pub const ADAPTER_DEFAULT: &str = "line";

/// Most characters of an adapter that a client names.
pub const ADAPTER_CHARS_MAX: usize = 32;

/// Longest secret of a client.
pub const SECRET_BYTES_MAX: usize = 128;

/// A secret that was shown. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// What is kept of a secret: enough to know it again, and not to tell it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash {
    /// Another one for each client, so that equal secrets cannot be seen to be equal.
    pub salt: [u8; 16],
    /// SHA-256 of the salt and the secret.
    pub hash: [u8; 32],
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash")
    }
}
