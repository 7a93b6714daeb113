//! What a client is told before it connects: servers, secrets, names, times.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use super::Client;
use super::address::Server;
use super::clock;
use super::cluster::{self, Cluster, Follow};
use super::error::Error;
use super::hold::Bounds;
use super::stream::Stream;
use crate::base::Millis;
use crate::drift::Drift;
use crate::engine::types::{Attach, Secret};
use crate::wire::client::push_request;
use crate::wire::command::{Command, Hello, NAME_BYTES_MAX};

/// How long a connection may take to be made, greeting included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer may take beyond the time that the request itself may wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the server of something held is asked whether it is still there, if no renewal does. Longer
/// than a third of the usual lease, so that this costs nothing then, and half as long as servers keep a
/// connection that is silent.
const CHECK_EVERY: Duration = Duration::from_secs(12);

/// No server is asked more often than this.
const CHECK_EVERY_MIN: Duration = Duration::from_millis(100);

/// Makes a [`Client`] with more than the addresses of its servers.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::Client;
///
/// let client = Client::builder("unix:/run/latchd.sock")
///     .auth_token("s3cret")
///     .name("nightly@db1")
///     .connect_timeout(Duration::from_secs(2))
///     .connect()?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    servers: Servers,
    auth: Option<Vec<u8>>,
    name: Option<String>,
    keep: bool,
    deadlock: bool,
    attach: Option<Identity>,
    connect_timeout: Duration,
    answer_timeout: Duration,
    check_every: Duration,
    clock_drift: Option<u32>,
    ca_file: Option<PathBuf>,
}

/// Which servers, as somebody has said it.
#[derive(Clone, Debug)]
enum Servers {
    /// A list with separators.
    List(String),
    /// The members of one cluster.
    Members(Vec<String>),
}

/// A client that outlives its connections.
#[derive(Clone)]
struct Identity {
    id: String,
    ttl: Duration,
    secret: Vec<u8>,
    adapter: Option<String>,
}

impl Builder {
    pub(super) fn new(servers: &str) -> Self {
        Self::of(Servers::List(servers.to_owned()))
    }

    pub(super) fn of_members(members: Vec<String>) -> Self {
        Self::of(Servers::Members(members))
    }

    fn of(servers: Servers) -> Self {
        Self {
            servers,
            auth: None,
            name: None,
            keep: false,
            deadlock: false,
            attach: None,
            connect_timeout: CONNECT_TIMEOUT,
            answer_timeout: ANSWER_TIMEOUT,
            check_every: CHECK_EVERY,
            clock_drift: None,
            ca_file: None,
        }
    }

    /// The token that the servers want to see.
    pub fn auth_token(mut self, token: impl Into<Vec<u8>>) -> Self {
        self.auth = Some(token.into());
        self
    }

    /// What `who` shows for whatever this client holds or waits for: 1 to 64 printable ASCII characters.
    /// By default the name of the program, its process id and eight digits that only this client has.
    ///
    /// It is also how the client knows its own grants again after an answer was lost: give each
    /// process another name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What this client acquires is not released when its connection ends, but when its lease does.
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// A request that would wait for itself is refused ([`Reason::Deadlock`](super::Reason::Deadlock)).
    /// Every guard has a connection of its own, so circles are seen within one client only if it is
    /// [attached](Self::attach): then all its guards are one.
    pub fn deadlock(mut self, deadlock: bool) -> Self {
        self.deadlock = deadlock;
        self
    }

    /// What this client acquires belongs to the client of this id, which outlives its connections by
    /// `ttl`. Whoever comes first chooses the secret. A guard is certain for no longer than `ttl` after a
    /// request, however long its lease is, and is renewed accordingly; with a `ttl` of nothing it
    /// ends with its connections as anybody's.
    pub fn attach(
        mut self,
        id: impl Into<String>,
        ttl: Duration,
        secret: impl Into<Vec<u8>>,
    ) -> Self {
        self.attach = Some(Identity {
            id: id.into(),
            ttl,
            secret: secret.into(),
            adapter: None,
        });
        self
    }

    /// The adapter that the [attached](Self::attach) client is one of, such as `nfs`: the server may allow
    /// each adapter so many clients. Without it the adapter is what stands in the id before the first `/`,
    /// or `line`. Has no effect before `attach`.
    pub fn adapter(mut self, adapter: impl Into<String>) -> Self {
        if let Some(identity) = &mut self.attach {
            identity.adapter = Some(adapter.into());
        }
        self
    }

    /// How long a connection may take to be made (10 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take beyond what its request may wait (10 s). A server that takes longer is
    /// [down](super::ErrorKind::Down).
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// How often the server is asked on the connection of a guard whether it is still there (12 s; 100 ms at
    /// least), if no renewal does. A guard that would end with that connection is [in
    /// doubt](super::Standing::Doubtful) when it was not answered for this and the answer timeout together.
    pub fn check_every(mut self, check_every: Duration) -> Self {
        self.check_every = check_every;
        self
    }

    /// By how many percent the clocks of this machine and of the servers may differ in speed, up to
    /// 50: so much of a lease is not counted on. 10 unless set, which is enough while a clock is
    /// slewed.
    pub fn clock_drift(mut self, percent: u32) -> Self {
        self.clock_drift = Some(percent);
        self
    }

    /// For `tls://`: a file with the certificates of those who may vouch for the servers, in PEM. By
    /// default those of the system, `/etc/ssl/certs/ca-certificates.crt`.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// The client, without connecting yet.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if a server, a name, a secret or a drift cannot be one.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client::over(self.checked()?))
    }

    /// The client, connected to all of its servers that can be reached.
    ///
    /// # Errors
    /// If none can be reached, if one does not let us in, or as [`build`](Self::build).
    pub fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.connect_all()?;
        Ok(client)
    }

    fn checked(self) -> Result<Options, Error> {
        let clusters = match &self.servers {
            Servers::List(list) => Cluster::parse_all(list)?,
            Servers::Members(members) => {
                let members: Vec<_> = members.iter().map(String::as_str).collect();
                vec![Cluster::of(&members.join("+"), &members)?]
            }
        };
        let drift = self.clock_drift.map(Drift::of).transpose();
        let drift = drift.map_err(Error::Misuse)?.unwrap_or_default();
        let name = self.name.unwrap_or_else(default_name);
        let mut frame = Vec::new();
        let misuse = |what: &str, why: &dyn fmt::Display| Error::Misuse(format!("{what}: {why}"));
        if let Some(secret) = &self.auth {
            push_request(&mut frame, &Command::Auth { secret })
                .map_err(|why| misuse("auth token", &why))?;
        }
        let options = Options {
            #[cfg(feature = "tls")]
            tls: super::tls::config(&clusters, self.ca_file.as_deref())?,
            clusters,
            auth: self.auth,
            name,
            keep: self.keep,
            deadlock: self.deadlock,
            attach: self.attach,
            connect_timeout: self.connect_timeout,
            answer_timeout: self.answer_timeout,
            check_every: self.check_every.max(CHECK_EVERY_MIN),
            drift,
        };
        push_request(&mut frame, &Command::Hello(options.hello())).map_err(|why| {
            let name = &options.name;
            let what = format!("name {name:?} is not 1 to {NAME_BYTES_MAX} printable characters");
            misuse(&what, &why)
        })?;
        if let Some(attach) = options.attach() {
            push_request(&mut frame, &Command::Attach(attach))
                .map_err(|why| misuse("attach", &why))?;
        }
        Ok(options)
    }
}

/// No secret is printed.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("servers", &self.servers)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The program, its process, and something that no other client has.
fn default_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = PathBuf::from(program);
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let is_plain = |it: &char| it.is_ascii_alphanumeric() || "-_.".contains(*it);
    let program: String = program.chars().filter(is_plain).take(32).collect();
    let unique = clock::chance(1 << 32);
    format!("{program}.{}.{unique:08x}", process::id())
}

/// The same, checked.
pub(super) struct Options {
    /// One for each part of the keys.
    pub(super) clusters: Vec<Cluster>,
    pub(super) auth: Option<Vec<u8>>,
    pub(super) name: String,
    pub(super) keep: bool,
    deadlock: bool,
    attach: Option<Identity>,
    pub(super) connect_timeout: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) check_every: Duration,
    pub(super) drift: Drift,
    #[cfg(feature = "tls")]
    tls: Option<std::sync::Arc<rustls::ClientConfig>>,
}

impl Options {
    /// What every connection says of itself. What is not wanted is not named, for servers that know
    /// nothing of it.
    pub(super) fn hello(&self) -> Hello<'_> {
        Hello {
            fence: Some(true),
            keep: self.keep.then_some(true),
            deadlock: self.deadlock.then_some(true),
            name: Some(self.name.as_bytes()),
        }
    }

    pub(super) fn attach(&self) -> Option<Attach<'_>> {
        let identity = self.attach.as_ref()?;
        Some(Attach {
            id: &identity.id,
            ttl: clock::millis(identity.ttl),
            secret: Secret(&identity.secret),
            adapter: identity.adapter.as_deref(),
        })
    }

    /// Whether what is acquired outlives its connection while the server lives.
    pub(super) fn outlives(&self) -> bool {
        match self.ttl() {
            Some(ttl) => ttl > Millis::ZERO,
            None => self.keep,
        }
    }

    /// How long the attached client outlives its connections. What it acquires is its own, and goes with
    /// it, also if connections keep what they acquire.
    fn ttl(&self) -> Option<Millis> {
        let identity = self.attach.as_ref()?;
        Some(clock::millis(identity.ttl))
    }

    /// How far a promise to this client reaches.
    pub(super) fn bounds(&self) -> Bounds {
        let silence_max = self.check_every.saturating_add(self.answer_timeout);
        match self.outlives() {
            true => Bounds {
                promise_max: self.ttl().unwrap_or(Millis::MAX),
                silence_max: None,
                drift: self.drift,
            },
            false => Bounds {
                promise_max: Millis::MAX,
                silence_max: Some(silence_max),
                drift: self.drift,
            },
        }
    }

    /// Where to go if this server sends us elsewhere.
    pub(super) fn follow(&self, shard: usize, teller: &Server, address: &str) -> Follow {
        let has_secret = self.auth.is_some() || self.attach.is_some();
        cluster::follow(&self.clusters, shard, teller, address, has_secret)
    }

    /// A stream as this server wants it.
    pub(super) fn dress(&self, server: &Server, stream: Stream) -> io::Result<Stream> {
        #[cfg(feature = "tls")]
        if let super::address::Door::Tls { host, .. } = &server.door {
            // Whoever is reached over TLS is in the list, or was told of by one that is.
            let (Some(config), Stream::Tcp(socket)) = (&self.tls, stream) else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            let stream = super::tls::TlsStream::new(config, host, socket)?;
            return Ok(Stream::Tls(Box::new(stream)));
        }
        let _ = server;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_said_is_misuse() {
        let builder = || Builder::new("localhost");
        assert!(builder().build().is_ok());
        for wrong in [
            builder().name(""),
            builder().name("a b"),
            builder().name("x".repeat(NAME_BYTES_MAX + 1)),
            builder().auth_token("a\nb"),
            builder().auth_token(" a"),
            builder().attach("#7", Duration::ZERO, "s"),
            builder().attach("gw/1", Duration::ZERO, ""),
            builder().clock_drift(51),
            Builder::new("a,,b"),
        ] {
            let shown = format!("{wrong:?}");
            let error = wrong.build().err();
            assert!(
                matches!(error, Some(Error::Misuse(_))),
                "{shown}: {error:?}"
            );
        }
    }

    #[test]
    fn default_names_are_good_names_and_differ() {
        let (one, other) = (default_name(), default_name());
        assert_ne!(one, other);
        assert!(Builder::new("localhost").name(one).build().is_ok());
    }

    #[test]
    fn secrets_are_not_printed() {
        let builder = Builder::new("localhost").auth_token("s3cret");
        let builder = builder.attach("gw/1", Duration::ZERO, "s3cret");
        assert!(!format!("{builder:?}").contains("s3cret"));
    }
}
