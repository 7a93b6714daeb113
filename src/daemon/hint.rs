//! What somebody who has just started the daemon can paste into another terminal.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How to take a lock from this machine, through `address`, where the daemon listens. The command
/// takes the token from a variable: the log never shows it.
pub(super) fn try_it(address: SocketAddr, asks_for_token: bool) -> String {
    let (condition, auth, token) = if asks_for_token {
        (
            ", with the token in $TOKEN",
            r"auth\n_\n%s\n",
            " \"$TOKEN\"",
        )
    } else {
        ("", "", "")
    };
    let (host, port) = (reachable(address.ip()), address.port());
    let command = format!(r"printf '{auth}l\ndemo\n10\n'{token} | nc -N {host} {port}");
    format!("try it in another terminal{condition}: {command}")
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
    fn the_command_reaches_the_daemon_from_this_machine() {
        for (address, command) in [
            ("127.0.0.1:6388", "nc -N 127.0.0.1 6388"),
            ("192.0.2.7:1", "nc -N 192.0.2.7 1"),
            ("0.0.0.0:6388", "nc -N 127.0.0.1 6388"),
            ("[::]:6388", "nc -N ::1 6388"),
            ("[::1]:6388", "nc -N ::1 6388"),
            ("[2001:db8::7]:6388", "nc -N 2001:db8::7 6388"),
            ("[::ffff:127.0.0.1]:6388", "nc -N 127.0.0.1 6388"),
            ("[::ffff:0.0.0.0]:6388", "nc -N 127.0.0.1 6388"),
        ] {
            let hint = try_it(address.parse().unwrap(), false);
            let (_, nc) = hint.split_once(" | ").unwrap();
            assert_eq!(nc, command, "{address}");
        }
    }
}
