//! Whether a browser asks that somebody else's page has sent.
//!
//! A page of any site can have its visitor's browser ask a server on the visitor's own machine or
//! network. Three headers show it. `Origin` names the site. `Sec-Fetch-Site` says whether it is another
//! site, also for frames, forms and links. `Host` names the site when its name was given our address.
//! Other programs send only a `Host`, which is how they found us. Decides from the headers alone, and
//! never resolves a name.
//!
//! Browsers send `Sec-Fetch-Site` only over HTTPS and to this machine, so no `GET` may consume anything.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::problem::{self, Problem};

/// Refuses a request for a server of another name. `names` are the names under which people know this
/// one, besides its addresses and `localhost`.
///
/// # Errors
/// The problem to answer with.
pub fn check_host<'n>(
    host: Option<&[u8]>,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<(), Problem<'static>> {
    let is_ours = host.is_none_or(|host| {
        let bare = without_port(host);
        is_address(bare)
            || bare.eq_ignore_ascii_case(b"localhost")
            || names
                .into_iter()
                .any(|name| bare.eq_ignore_ascii_case(name.as_bytes()))
    });
    if is_ours {
        Ok(())
    } else {
        Err(problem::FOREIGN_HOST)
    }
}

/// Refuses a request that a page of another site has sent. Over an encrypted connection our own pages
/// are encrypted, too; over one that is not, a proxy before us may have encrypted them.
///
/// # Errors
/// The problem to answer with.
pub fn check_origin(
    host: Option<&[u8]>,
    origin: Option<&[u8]>,
    is_encrypted: bool,
) -> Result<(), Problem<'static>> {
    match origin {
        Some(origin) if !is_same_site(origin, host.unwrap_or_default(), is_encrypted) => {
            Err(problem::FOREIGN_ORIGIN)
        }
        _ => Ok(()),
    }
}

/// Refuses a request if the browser says that another site has sent it. A typed address is `none`,
/// also if another site redirects it to us, so `none` may only look.
///
/// # Errors
/// The problem to answer with.
pub fn check_fetch_site(site: Option<&[u8]>, only_looks: bool) -> Result<(), Problem<'static>> {
    match site {
        None | Some(b"same-origin") => Ok(()),
        Some(b"none") if only_looks => Ok(()),
        Some(_) => Err(problem::FOREIGN_ORIGIN),
    }
}

/// Without `:port`; of an address in brackets, what is in them.
fn without_port(host: &[u8]) -> &[u8] {
    if let Some(rest) = host.strip_prefix(b"[") {
        let end = memchr::memchr(b']', rest);
        return end.map_or(b"", |end| &rest[..end]);
    }
    let end = memchr::memchr(b':', host).unwrap_or(host.len());
    &host[..end]
}

fn is_address(host: &[u8]) -> bool {
    let text = str::from_utf8(host).unwrap_or_default();
    text.parse::<Ipv4Addr>().is_ok() || text.parse::<Ipv6Addr>().is_ok()
}

/// Whether an origin, `scheme://host:port`, is the host that was asked.
fn is_same_site(origin: &[u8], host: &[u8], is_encrypted: bool) -> bool {
    let schemes = [&b"https://"[..], b"http://"];
    let schemes = if is_encrypted {
        &schemes[..1]
    } else {
        &schemes
    };
    schemes
        .iter()
        .filter_map(|scheme| origin.strip_prefix(*scheme))
        .any(|site| !site.is_empty() && site.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(host: &str, origin: Option<&str>) -> Result<(), &'static str> {
        let origin = origin.map(str::as_bytes);
        let names = ["locks.example", "other"];
        let host = Some(host.as_bytes());
        let checked = check_host(host, names).and_then(|()| check_origin(host, origin, false));
        checked.map_err(|it| it.reason)
    }

    #[test]
    fn a_host_is_an_address_or_a_name_of_ours() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:6389",
            "192.168.1.7:80",
            "[::1]",
            "[::1]:6389",
            "localhost",
            "LocalHost:6389",
            "locks.example:6389",
            "LOCKS.example",
        ] {
            assert_eq!(checked(host, None), Ok(()), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:6389",
            "127.0.0.1.evil.example",
            "[::1",
            "[evil]:1",
            "0x7f.1",
            "127.1",
            "localhost@evil",
        ] {
            assert_eq!(checked(host, None), Err("FOREIGN_HOST"), "{host}");
        }
        assert_eq!(check_host(None, []), Ok(()), "HTTP/1.0 has none");
    }

    #[test]
    fn a_page_of_ours_may_ask_and_no_other() {
        let host = "localhost:6389";
        for (origin, want) in [
            (None, Ok(())),
            (Some("http://localhost:6389"), Ok(())),
            (Some("https://LOCALHOST:6389"), Ok(())),
            (Some("http://localhost"), Err("FOREIGN_ORIGIN")),
            (Some("http://localhost:80"), Err("FOREIGN_ORIGIN")),
            (Some("http://evil.example"), Err("FOREIGN_ORIGIN")),
            (Some("http://127.0.0.1:6389"), Err("FOREIGN_ORIGIN")),
            (Some("null"), Err("FOREIGN_ORIGIN")),
            (Some(""), Err("FOREIGN_ORIGIN")),
            (Some("http://"), Err("FOREIGN_ORIGIN")),
            (Some("localhost:6389"), Err("FOREIGN_ORIGIN")),
        ] {
            assert_eq!(checked(host, origin), want, "{origin:?}");
        }
    }

    #[test]
    fn a_browser_may_look_by_a_typed_address_and_do_all_else_from_our_page() {
        for (site, looks, does) in [
            (None, true, true),
            (Some("same-origin"), true, true),
            (Some("none"), true, false),
            (Some("same-site"), false, false),
            (Some("cross-site"), false, false),
            (Some("Same-Origin"), false, false),
            (Some(""), false, false),
        ] {
            let site = site.map(str::as_bytes);
            let may = [true, false].map(|only_looks| check_fetch_site(site, only_looks).is_ok());
            assert_eq!(may, [looks, does], "{site:?}");
        }
    }

    #[test]
    fn a_page_that_was_not_encrypted_is_none_of_an_encrypted_server() {
        let host = Some(&b"localhost:6389"[..]);
        let from = |origin: &'static str| check_origin(host, Some(origin.as_bytes()), true);
        assert_eq!(from("https://localhost:6389"), Ok(()));
        for foreign in ["http://localhost:6389", "https://localhost", "null"] {
            assert!(from(foreign).is_err(), "{foreign}");
        }
        assert_eq!(check_origin(host, None, true), Ok(()));
    }
}
