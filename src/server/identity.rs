//! Identity of a peer beyond one connection. Without tokens, a repeated request is answered to the
//! same identity only.
//!
//! A certificate identifies its peer byte for byte, so a renewed certificate is another peer. A peer
//! without one is identified by its host, so a client that reconnects stays the same. Never shown.

use super::Host;
use crate::sha256::sha256;

/// A letter for the kind, and what tells one from all others of this kind.
pub type Identity = [u8; 17];

/// Of a peer with this certificate.
#[must_use]
pub fn of_certificate(der: &[u8]) -> Identity {
    identity(b'c', &sha256(&[der])[..16])
}

/// Of a peer without one.
#[must_use]
pub fn of_host(host: Host) -> Identity {
    match host {
        Host::V4(address) => identity(b'4', &address),
        Host::V6(net) => identity(b'6', &net),
        Host::User(uid) => identity(b'u', &uid.to_be_bytes()),
        // Gone before it could be asked, so no answer reaches it.
        Host::Unknown => identity(b'?', &[]),
    }
}

fn identity(kind: u8, bytes: &[u8]) -> Identity {
    let mut identity = [0; 17];
    identity[0] = kind;
    identity[1..][..bytes.len()].copy_from_slice(bytes);
    identity
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_host_is_one_peer_and_a_certificate_another() {
        let all = BTreeSet::from([
            of_host(Host::V4([10, 0, 0, 1])),
            of_host(Host::V4([10, 0, 0, 2])),
            of_host(Host::V6([10, 0, 0, 1, 0, 0, 0, 0])),
            of_host(Host::User(0x0a00_0001)),
            of_host(Host::Unknown),
            of_certificate(b"one"),
            of_certificate(b"other"),
        ]);
        assert_eq!(all.len(), 7);
        assert!(all.contains(&of_host(Host::V4([10, 0, 0, 2]))));
        assert!(all.contains(&of_certificate(b"other")));
    }
}
