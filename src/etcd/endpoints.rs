//! Where the members of an etcd are, and how one gets in: over TLS if the addresses say so, as a user if
//! there is one.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "tls")]
use rustls::ClientConfig;

use super::Trouble;
use super::http::Connection;
use super::login::{Login, Password, Token};
#[cfg(test)]
use super::names::LookUp;
use super::names::Name;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::{Terms, TlsStream, is_name};

/// Default time limit for a connection to one member.
const CONNECT_WITHIN: Duration = Duration::from_millis(1_250);

/// Where the members of an etcd are, and how one gets in. Clones are the same.
#[derive(Clone)]
pub struct Endpoints {
    /// At least one.
    members: Arc<[Arc<Name>]>,
    /// All of them speak TLS, or none does.
    is_encrypted: bool,
    #[cfg(feature = "tls")]
    terms: Option<Terms>,
    login: Option<Arc<Login>>,
    connect_within: Duration,
}

/// Why this is not the address of an etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEndpoint(String);

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What they show and whom they trust is left out.
impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members.iter().map(|it| it.member());
        f.debug_list().entries(members).finish()
    }
}

impl Endpoints {
    /// Reads `http://10.0.0.1:2379,http://10.0.0.2:2379`, or the same with `https://`.
    ///
    /// # Errors
    /// Which of them is no such address, and why.
    pub fn parse(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |url: &str, why: &str| BadEndpoint(format!("{url:?} {why}"));
        let mut members = Vec::new();
        let mut is_encrypted = None;
        for url in text.split(',') {
            let (has_tls, rest) = match (
                url.trim().strip_prefix("https://"),
                url.trim().strip_prefix("http://"),
            ) {
                (Some(rest), _) => (true, rest),
                (None, Some(rest)) => (false, rest),
                (None, None) => return Err(bad(url, "is not http://HOST:PORT")),
            };
            if has_tls && !cfg!(feature = "tls") {
                return Err(bad(url, "asks for TLS, and this latchd was built without"));
            }
            if *is_encrypted.get_or_insert(has_tls) != has_tls {
                let why = "is not like the one before it: use https:// for all, or for none";
                return Err(bad(url, why));
            }
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            let host = rest.rsplit_once(':').and_then(|(host, port)| {
                let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
                let is_good = is_port && port.parse::<u16>().is_ok_and(|port| port != 0);
                (is_good && !host.is_empty()).then_some(host)
            });
            let is_plain = !rest.contains(['/', '?', '#', '@', ' ', '\r', '\n']);
            let Some(host) = host.filter(|_| is_plain) else {
                return Err(bad(url, "is not http://HOST:PORT"));
            };
            if has_tls && !can_be_certified(host) {
                return Err(bad(url, "has a host that no certificate can be for"));
            }
            members.push(Name::new(rest));
        }
        Ok(Self {
            members: members.into(),
            is_encrypted: is_encrypted.unwrap_or_default(),
            #[cfg(feature = "tls")]
            terms: None,
            login: None,
            connect_within: CONNECT_WITHIN,
        })
    }

    /// Whether all of them speak TLS; otherwise none does.
    #[must_use]
    pub fn are_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// The same, with whom to trust and what to show over TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(self, config: Arc<ClientConfig>) -> Self {
        let terms = Some(Terms::new(config));
        Self { terms, ..self }
    }

    /// Connections that begin from now on use this, those of all clones.
    #[cfg(feature = "tls")]
    pub fn replace_tls(&self, config: Arc<ClientConfig>) {
        if let Some(terms) = &self.terms {
            terms.replace(config);
        }
    }

    /// The same. A member gets so long for a connection, TLS and its version together, before the next
    /// member is tried, and as long to draw a token.
    #[must_use]
    pub fn connecting_within(self, connect_within: Duration) -> Self {
        Self {
            connect_within,
            ..self
        }
    }

    pub(super) fn connect_within(&self) -> Duration {
        self.connect_within
    }

    /// The same, as this user.
    #[must_use]
    pub fn with_login(self, user: &str, password: Password) -> Self {
        let login = Some(Arc::new(Login::new(user.to_owned(), password)));
        Self { login, ..self }
    }

    /// From now on this password is shown, by all clones.
    pub fn replace_password(&self, password: Password) {
        if let Some(login) = &self.login {
            login.set_password(password);
        }
    }

    /// Whether there is a user, and etcd has said that it asks for none.
    #[must_use]
    pub fn is_login_idle(&self) -> bool {
        self.login.as_ref().is_some_and(|it| it.is_idle())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// `host:port` of one of them.
    pub(super) fn member(&self, index: usize) -> &str {
        self.members.get(index).map_or("", |it| it.member())
    }

    /// Where one of them is, as far as that is known by the deadline.
    pub(super) fn addresses(&self, index: usize, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        let member = self.members.get(index);
        member.map_or_else(|| Ok(Vec::new()), |it| it.addresses(deadline))
    }

    /// It was not found there.
    pub(super) fn doubt_addresses(&self, index: usize) {
        if let Some(member) = self.members.get(index) {
            member.doubt();
        }
    }

    /// For tests: it was looked up long ago.
    #[cfg(test)]
    pub(super) fn age_addresses(&self, index: usize) {
        self.members[index].grow_old();
    }

    /// For tests: names are looked up so.
    #[cfg(test)]
    pub(super) fn looked_up_by(self, look_up: LookUp) -> Self {
        let members = self.members.iter();
        let members = members.map(|it| Name::with(it.member(), look_up)).collect();
        Self { members, ..self }
    }

    /// A connection to a member at one of its addresses, with TLS behind its handshake.
    pub(super) fn open(
        &self,
        member: &str,
        address: SocketAddr,
        deadline: Instant,
    ) -> io::Result<Connection> {
        let stream = match self.is_encrypted {
            false => Stream::open(address, deadline)?,
            true => self.open_encrypted(member, address, deadline)?,
        };
        Ok(Connection::new(stream, member))
    }

    /// What to show with a call over this connection; nothing if there is no user.
    pub(super) fn token(
        &self,
        connection: &mut Connection,
        deadline: Instant,
    ) -> Result<Option<Token>, Trouble> {
        match &self.login {
            Some(login) => login.token(connection, deadline),
            None => Ok(None),
        }
    }

    /// Whether there is a user, and the next call has to draw a token first.
    pub(super) fn lacks_token(&self) -> bool {
        self.login.as_ref().is_some_and(|it| it.lacks_token())
    }

    /// Nobody has to connect to hear what was said a moment ago: that the password is wrong.
    pub(super) fn refusal(&self) -> Result<(), Trouble> {
        match self.login.as_ref().and_then(|it| it.refusal()) {
            Some(why) => Err(Trouble::Forbidden(why)),
            None => Ok(()),
        }
    }

    /// A call with this token came to that. Returns whether the token is to blame, and another one can be had.
    pub(super) fn note(&self, trouble: &Trouble, token: Option<&Token>) -> bool {
        match (&self.login, trouble) {
            (Some(login), Trouble::BadToken(_)) => {
                login.drop_token(token);
                true
            }
            _ => false,
        }
    }

    #[cfg(feature = "tls")]
    fn open_encrypted(
        &self,
        member: &str,
        address: SocketAddr,
        deadline: Instant,
    ) -> io::Result<Stream> {
        let terms = self.terms.as_ref();
        let terms = terms.ok_or_else(|| io::Error::other("nobody said whom to trust"))?;
        let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
        TlsStream::open(address, host, terms, deadline).map(|it| Stream::Tls(Box::new(it)))
    }

    #[cfg(not(feature = "tls"))]
    fn open_encrypted(&self, _: &str, _: SocketAddr, _: Instant) -> io::Result<Stream> {
        Err(io::Error::other("built without TLS"))
    }
}

#[cfg(feature = "tls")]
fn can_be_certified(host: &str) -> bool {
    is_name(host)
}

#[cfg(not(feature = "tls"))]
fn can_be_certified(_: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(endpoints: &Endpoints) -> Vec<String> {
        let members = endpoints.members.iter();
        members.map(|it| it.member().to_owned()).collect()
    }

    #[test]
    fn addresses_are_read_or_refused() {
        let read = |text| Endpoints::parse(text).map(|it| names(&it));
        let two = read("http://10.0.0.1:2379, http://etcd-b:2379/");
        assert_eq!(two.unwrap(), ["10.0.0.1:2379", "etcd-b:2379"]);
        assert_eq!(read("http://[::1]:2379").unwrap(), ["[::1]:2379"]);
        for text in [
            "",
            "10.0.0.1:2379",
            "http://host",
            "http://:2379",
            "http://host:0",
            "http://host:99999",
            "http://host:2379/v3",
            "http://user@host:2379",
            "http://a:1,,http://b:1",
            "ftp://a:1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn encrypted_addresses_are_read_or_refused() {
        let read = |text| Endpoints::parse(text).map(|it| (it.are_encrypted(), names(&it)));
        let (is_encrypted, members) = read("https://10.0.0.1:2379,https://[::1]:2379/").unwrap();
        assert!(is_encrypted);
        assert_eq!(members, ["10.0.0.1:2379", "[::1]:2379"]);
        assert!(!read("http://a:1").unwrap().0);
        for (text, says) in [
            ("https://a:1,http://b:1", "for all, or for none"),
            ("http://a:1,https://b:1", "for all, or for none"),
            ("https://_ä:1", "no certificate"),
            ("https://a", "HOST:PORT"),
        ] {
            let why = read(text).unwrap_err().to_string();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encrypted_addresses_are_refused_without_tls() {
        let why = Endpoints::parse("https://a:1").unwrap_err().to_string();
        assert!(why.contains("built without"), "{why}");
    }

    #[test]
    fn neither_password_nor_token_is_printed() {
        let endpoints = Endpoints::parse("http://a:1").unwrap();
        let endpoints = endpoints.with_login("me", Password::new("s3cret".to_owned()));
        let shown = format!("{endpoints:?} {:?}", Password::new("s3cret".to_owned()));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
