//! The servers that one client may ask: one, or the members of a cluster, of which one leads. Who led last, and whom an
//! answer sends us to: the rule for that is in `docs/client.md`.

use core::net::IpAddr; // addresses alone: there are no sockets in it
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::call::checked_base;
use super::error::Error;

/// Addresses, each without a slash at its end.
pub(super) struct Members {
    bases: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Who answered last.
    leader: Option<String>,
    /// Who is asked first if nobody is known to lead: the one after the last that failed.
    first: usize,
}

impl Members {
    pub(super) fn new(bases: &[String]) -> Result<Self, Error> {
        let bases = bases.iter().map(|base| checked_base(base));
        let bases = bases.collect::<Result<Vec<_>, _>>()?;
        if bases.is_empty() {
            return Err(Error::misuse("there is no address of a server"));
        }
        Ok(Self {
            bases,
            state: Mutex::default(),
        })
    }

    pub(super) fn bases(&self) -> &[String] {
        &self.bases
    }

    pub(super) fn is_alone(&self) -> bool {
        self.bases.len() == 1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom to ask, in this order.
    pub(super) fn candidates(&self) -> Vec<String> {
        let state = self.state();
        let count = self.bases.len();
        let members = (0..count).map(|it| &self.bases[(state.first + it) % count]);
        let leader = state.leader.clone();
        let others = members.filter(|it| leader.as_ref() != Some(it)).cloned();
        leader.clone().into_iter().chain(others).collect()
    }

    /// This one has decided something.
    pub(super) fn set_leader(&self, base: &str) {
        if self.is_alone() && self.bases[0] == base {
            return;
        }
        let mut state = self.state();
        if state.leader.as_deref() != Some(base) {
            state.leader = Some(base.to_owned());
        }
    }

    /// This one does not lead, or does not answer.
    pub(super) fn forget(&self, base: &str) {
        let mut state = self.state();
        if state.leader.as_deref() == Some(base) {
            state.leader = None;
        }
        if let Some(index) = self.bases.iter().position(|it| it == base) {
            state.first = (index + 1) % self.bases.len();
        }
    }

    /// Where a redirection of a request for this path leads, if it may be followed: to an address of our list, as it is
    /// listed, or to one that is protected as well as the one that told of it.
    ///
    /// Of secrets only the token counts. Who has a lease's id can let it go; but a server without a token lets
    /// everybody who reaches it break what others hold, so that nobody gains by overhearing one.
    pub(super) fn follow(
        &self,
        teller: &str,
        location: &str,
        path: &str,
        has_token: bool,
    ) -> Option<String> {
        let base = checked_base(location.strip_suffix(path)?).ok()?;
        if let Some(member) = self.bases.iter().find(|it| **it == base) {
            return Some(member.clone());
        }
        let is_tls = |base: &str| base.starts_with("https://");
        // A member that is listed with TLS is not asked in the open because somebody says so.
        let same_place = |it: &&String| !is_tls(&base) && is_same_place(it, &base);
        if let Some(member) = self.bases.iter().find(same_place) {
            return Some(member.clone());
        }
        let leaves_the_machine = is_local(teller) && !is_local(&base);
        let is_protected_less = match (is_tls(teller), is_tls(&base)) {
            (_, true) => false,
            (true, false) => true,
            (false, false) => has_token && leaves_the_machine,
        };
        (!is_protected_less).then_some(base)
    }
}

/// Whether two addresses are of the same host and port, with TLS or without. A port that neither of them names counts as
/// the same.
fn is_same_place(one: &str, other: &str) -> bool {
    let place = |base: &str| {
        let uri: ureq::http::Uri = base.parse().ok()?;
        Some((uri.host()?.to_ascii_lowercase(), uri.port_u16()))
    };
    place(one).is_some_and(|it| place(other) == Some(it))
}

/// Whether nothing that is said to it leaves this machine.
fn is_local(base: &str) -> bool {
    let uri: Option<ureq::http::Uri> = base.parse().ok();
    let host = uri.as_ref().and_then(|it| it.host()).unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip: Result<IpAddr, _> = host.parse();
    ip.is_ok_and(|ip| ip.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(bases: &[&str]) -> Members {
        let bases: Vec<_> = bases.iter().map(|it| (*it).to_owned()).collect();
        Members::new(&bases).unwrap()
    }

    #[test]
    fn who_answered_last_is_asked_first_and_who_failed_last() {
        let members = members(&["http://a/", "http://b", "http://c"]);
        let all = |texts: [&str; 3]| texts.map(|it| format!("http://{it}")).to_vec();
        assert_eq!(members.candidates(), all(["a", "b", "c"]));
        members.set_leader("http://c");
        assert_eq!(members.candidates(), all(["c", "a", "b"]));
        members.forget("http://c");
        assert_eq!(members.candidates(), all(["a", "b", "c"]));
        members.forget("http://a");
        assert_eq!(members.candidates(), all(["b", "c", "a"]));
        members.set_leader("http://told");
        assert_eq!(members.candidates()[0], "http://told");
    }

    #[test]
    fn a_redirection_is_followed_where_a_token_is_protected_as_well() {
        let path = "/v1/locks/a/acquire";
        let members = members(&["http://127.0.0.1:1", "http://10.0.0.1:2"]);
        let goes = |teller: &str, base: &str, has_token| {
            members.follow(teller, &format!("{base}{path}"), path, has_token)
        };
        for (teller, base, with, without) in [
            ("http://10.0.0.1:2", "http://10.0.0.3:3", true, true),
            ("http://127.0.0.1:1", "http://10.0.0.3:3", false, true),
            ("http://localhost:1", "http://10.0.0.3:3", false, true),
            ("http://[::1]:1", "http://127.0.0.1:3", true, true),
            ("http://127.0.0.1:1", "http://10.0.0.1:2", true, true),
            ("https://10.0.0.9", "http://10.0.0.3:3", false, false),
            ("http://10.0.0.1:2", "ftp://10.0.0.3:3", false, false),
            ("http://10.0.0.1:2", "http://u:p@10.0.0.3:3", false, false),
        ] {
            assert_eq!(goes(teller, base, true).is_some(), with, "{teller} {base}");
            assert_eq!(
                goes(teller, base, false).is_some(),
                without,
                "{teller} {base}"
            );
        }
        let tls = cfg!(feature = "tls");
        assert_eq!(goes("http://127.0.0.1:1", "https://x", true).is_some(), tls);
        let elsewhere = members.follow("http://10.0.0.1:2", "http://b/other", path, false);
        assert_eq!(elsewhere, None, "another path is another request");
    }
    /// Whatever a member in the open says of another one that is listed with TLS.
    #[cfg(feature = "tls")]
    #[test]
    fn a_member_is_asked_as_it_is_listed() {
        let path = "/v1/locks/a/renew";
        let members = members(&["http://a:1", "https://b", "https://c:2/locks", "http://d"]);
        for (told, goes) in [
            ("http://b", Some("https://b")),
            ("http://B", Some("https://b")),
            ("http://c:2", Some("https://c:2/locks")),
            ("http://d", Some("http://d")),
            ("https://d", Some("https://d")),
            ("http://c:3", Some("http://c:3")),
            ("http://b:80", Some("http://b:80")),
        ] {
            let followed = members.follow("http://a:1", &format!("{told}{path}"), path, true);
            assert_eq!(followed.as_deref(), goes, "{told}");
        }
    }
}
