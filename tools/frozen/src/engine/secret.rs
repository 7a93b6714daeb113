//! Secrets of attached clients: kept as a salted hash, compared in constant time.
//!
//! The hash is SHA-256 of the salt and the secret. It is not slow on purpose: one thread
//! serves everybody, so that guesses are few is the server's business (`server/guesses.rs`). Whoever
//! reads the data directory can try weak secrets; a client should draw its secret at random.

use constant_time_eq::constant_time_eq;

use super::types::{Secret, SecretHash};
use crate::sha256::sha256;

impl SecretHash {
    /// What is kept of this secret, with a salt that nobody can foresee.
    #[must_use]
    pub fn new(salt: [u8; 16], secret: Secret<'_>) -> Self {
        let hash = sha256(&[&salt, secret.0]);
        Self { salt, hash }
    }

    /// Whether this is the secret. Takes as long for a wrong one as for the right one.
    #[must_use]
    pub fn is_of(&self, secret: Secret<'_>) -> bool {
        constant_time_eq(&sha256(&[&self.salt, secret.0]), &self.hash)
    }
}
