//! The line of the start-up log to paste into another terminal, and the address for a browser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A command that holds a lock for ten seconds, from this machine, of the daemon that listens on
/// `address`. `latch` reads the token from a variable, because the log must not show it.
pub(super) fn try_it(address: SocketAddr, asks_for_token: bool) -> String {
    let condition = match asks_for_token {
        true => ", with the token in $LATCH_AUTH_TOKEN",
        false => "",
    };
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    format!(
        "hold a lock from another terminal (latch{condition}): \
         latch --server {address} run demo -- sleep 10"
    )
}

/// The hint for a port that speaks TLS. Clients need a name from the certificate, which is not read
/// here.
pub(super) fn try_it_encrypted(address: SocketAddr, asks_for_token: bool) -> String {
    let and_token = match asks_for_token {
        true => ", and the token in $LATCH_AUTH_TOKEN",
        false => "",
    };
    let port = address.port();
    format!(
        "hold a lock from another terminal (latch, with a name of the certificate for NAME, its \
         authority in the file $LATCH_CA_FILE unless the system trusts it{and_token}): \
         latch --server tls://NAME:{port} run demo -- sleep 10"
    )
}

/// The hint for a port where clients need a certificate. `latch` shows none, so the hint uses
/// OpenSSL. It does not check the certificate of the daemon here.
pub(super) fn try_it_with_certificate(address: SocketAddr, asks_for_token: bool) -> String {
    let (condition, auth) = if asks_for_token {
        (
            ", with the token in $TOKEN",
            r#"echo auth; echo _; echo "$TOKEN"; "#,
        )
    } else {
        ("", "")
    };
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    format!(
        "hold a lock from another terminal (OpenSSL{condition}): ({auth}echo l; echo demo; \
         echo 10; cat) | openssl s_client -quiet -alpn latchd -cert $CERT -key $KEY \
         -connect {address}"
    )
}

/// Where a browser on this machine shows the dashboard of a daemon that serves HTTP on `address`.
pub(super) fn dashboard(address: SocketAddr, is_encrypted: bool) -> String {
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    let scheme = if is_encrypted { "https" } else { "http" };
    format!("{scheme}://{address}/")
}

/// Every interface is no address to connect to; loopback is one of them.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_on_this_machine_reaches_the_dashboard() {
        for (address, page) in [
            ("127.0.0.1:6389", "http://127.0.0.1:6389/"),
            ("192.0.2.7:1", "http://192.0.2.7:1/"),
            ("0.0.0.0:6389", "http://127.0.0.1:6389/"),
            ("[::]:6389", "http://[::1]:6389/"),
            ("[2001:db8::7]:6389", "http://[2001:db8::7]:6389/"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(dashboard(address, false), page);
            let encrypted = page.replace("http:", "https:");
            assert_eq!(dashboard(address, true), encrypted);
        }
    }

    #[test]
    fn the_command_reaches_the_daemon_from_this_machine() {
        for (address, server) in [
            ("127.0.0.1:6388", "127.0.0.1:6388"),
            ("192.0.2.7:1", "192.0.2.7:1"),
            ("0.0.0.0:6388", "127.0.0.1:6388"),
            ("[::]:6388", "[::1]:6388"),
            ("[::1]:6388", "[::1]:6388"),
            ("[2001:db8::7]:6388", "[2001:db8::7]:6388"),
            ("[::ffff:127.0.0.1]:6388", "127.0.0.1:6388"),
            ("[::ffff:0.0.0.0]:6388", "127.0.0.1:6388"),
        ] {
            let hint = try_it(address.parse().unwrap(), false);
            let (_, rest) = hint.split_once(" latch --server ").unwrap();
            assert_eq!(rest.split(' ').next(), Some(server), "{address}");
        }
    }
}
