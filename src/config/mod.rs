//! Settings: from a command line, an environment and a file to one checked [`Config`].
//!
//! A flag beats the environment, that beats the configuration file, that beats the default, and a
//! value that cannot be read is an error, never a default. Every option is one row of `table::ROWS`;
//! the command line, the environment, the keys of the file, `--help`, the manual page and the table
//! in `docs/settings.md` are all made from those rows.
//!
//! This layer never exits, prints or looks at the process: it is given arguments and environment,
//! and returns a value. All it reads by itself are the configuration file and the token file; those of
//! TLS are for the daemon, which reads them again when it is told to.

mod cluster;
mod command;
mod exit;
mod file;
#[cfg(test)]
mod file_tests;
mod man;
mod named_file;
mod put;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use log::LevelFilter;

use crate::base::Millis;
use crate::engine::ClientLimit;
use crate::engine::GracePolicy;
use crate::engine::types::Share;
use crate::store::Durability;
use crate::wire::answer::WireFence;
pub use cluster::Cluster;
use command::Instead;
pub use command::settings_markdown;
pub use exit::Exit;
#[cfg(any(feature = "cluster", feature = "tls"))]
pub(crate) use named_file::read_named_file;
use row::{Row, Wrong};
use table::{CONFIG, ROWS, SHARE};
pub use value::{HttpPort, MaxMemory, Secret, token_file};

/// Everything an operator can decide, checked and ready for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `--config`: the file that some of these settings come from.
    pub config_file: Option<PathBuf>,
    /// `--host`: the one address to listen on.
    pub host: IpAddr,
    /// `--port`: the TCP port; 0 lets the system choose a free one.
    pub port: u16,
    /// `--unix-socket`: a socket file to listen on besides TCP.
    pub unix_socket: Option<PathBuf>,
    /// `--unix-socket-mode`: permission bits of socket files, at most 0o777.
    pub unix_socket_mode: u32,
    /// `--http-port`: the TCP port for HTTP, if any.
    pub http_port: HttpPort,
    /// `--http-unix-socket`: a socket file for HTTP.
    pub http_unix_socket: Option<PathBuf>,
    /// `--http-host-name`: names under which people know this server, besides its addresses.
    pub http_host_names: Vec<String>,
    /// `--metrics-open`: whether `/metrics` is shown to those who send no token.
    pub metrics_open: bool,
    /// `--share`: parts of all names that have figures of their own.
    pub shares: Vec<Share>,
    /// Whether those in the configuration file count: they are read again when the daemon is told to.
    pub shares_are_in_file: bool,
    /// `--get-secrets`: whether asking about a lock over HTTP tells what it takes to release it.
    pub get_secrets: bool,
    /// `--access-log`: whether every answer over HTTP is logged.
    pub access_log: bool,
    /// `--data-dir`: where everything that has to survive a restart is kept; `None` keeps nothing.
    pub data_dir: Option<PathBuf>,
    /// `--durability`: what an answer waits for, if there is a data directory.
    pub durability: Durability,
    /// `--cluster` and everything that belongs to it.
    pub cluster: Cluster,
    /// `--default-lease-ttl`: the lease of a grant whose request names none; never zero.
    pub default_lease_ttl: Millis,
    /// `--gc-interval`: time between two looks for keys nobody uses; never zero.
    pub gc_interval: Millis,
    /// `--gc-max-idle`: how long an unused key is remembered; zero forgets it at the next look.
    pub gc_max_idle: Millis,
    /// `--auto-release-on-disconnect`: whether a closed connection lets go of what it holds.
    pub auto_release_on_disconnect: bool,
    /// `--deadlock-detection`: whether every request that would wait for itself is refused.
    pub deadlock_detection: bool,
    /// `--wire-fence`: which replies carry the fence as a field.
    pub wire_fence: WireFence,
    /// `--max-locks`: most locks at one time; `None` is no limit, `Some(0)` does not occur.
    pub max_locks: Option<u32>,
    /// `--max-holds`: most grants at one time; `None` is no limit.
    pub max_holds: Option<u32>,
    /// `--max-memory`: most bytes that clients can make the daemon keep.
    pub max_memory: MaxMemory,
    /// `--max-connections`: most connections at one time; `None` is no limit.
    pub max_connections: Option<u32>,
    /// `--max-waiters`: most waiters on one key; `None` is no limit.
    pub max_waiters: Option<u32>,
    /// `--max-keys`: most counters, values, lists and barriers together; `None` is no limit.
    pub max_keys: Option<u32>,
    /// `--max-list-length`: most values in one list; `None` is no limit.
    pub max_list_length: Option<u32>,
    /// `--max-subscriptions`: most that one connection listens to, watches and observes; `None` is
    /// no limit.
    pub max_subscriptions: Option<u32>,
    /// `--max-clients-per-adapter`: most attached clients of one adapter; `None` is no limit.
    pub max_clients_per_adapter: Option<u32>,
    /// `--max-clients`: most attached clients of some adapters.
    pub max_clients: Vec<ClientLimit>,
    /// `--max-range-locks-per-resource`: most range locks of one resource; `None` is no limit.
    pub max_range_locks_per_resource: Option<u32>,
    /// `--max-range-locks-per-client`: most range locks of one client; `None` is no limit.
    pub max_range_locks_per_client: Option<u32>,
    /// `--max-range-locks`: most range locks at one time; `None` is no limit.
    pub max_range_locks: Option<u32>,
    /// `--max-range-wait`: longest wait for a range lock; `None` is as long as a client asks for.
    pub max_range_wait: Option<Millis>,
    /// `--grace-period`: how long range locks are kept after a restart for those who held them.
    pub grace_period: Millis,
    /// `--grace-policy`: what is refused meanwhile.
    pub grace_policy: GracePolicy,
    /// `--read-timeout`: how long a connection may be silent; never zero.
    pub read_timeout: Millis,
    /// `--write-timeout`: how long a peer may leave its replies unread; `None` is for ever.
    pub write_timeout: Option<Millis>,
    /// `--shutdown-timeout`: how long a stopping daemon waits for its clients; `None` is for ever.
    pub shutdown_timeout: Option<Millis>,
    /// `--tls-cert`: the file with the certificate that TCP connections are encrypted with; `None` is
    /// without TLS.
    pub tls_cert: Option<PathBuf>,
    /// `--tls-key`: the file with its private key; there if and only if the certificate is.
    pub tls_key: Option<PathBuf>,
    /// `--tls-client-ca`: the file with the authorities whose certificates clients need.
    pub tls_client_ca: Option<PathBuf>,
    /// `--auth-timeout`: how long a connection may take to show a token; never zero.
    pub auth_timeout: Millis,
    /// `--tls-handshake-timeout`: how long a client may take to agree on keys; never zero.
    pub tls_handshake_timeout: Millis,
    /// `--auth-token` or `--auth-token-file`: what a client must say first; `None` lets all in.
    pub auth_token: Option<Secret>,
    /// Where that came from, if it was a file: it is read again when the daemon is told to.
    pub auth_token_file: Option<PathBuf>,
    /// Whether the token itself is in the configuration file, which is a secret then.
    pub config_file_has_token: bool,
    /// `--unix-admin-uid`: who needs none over a unix socket.
    pub unix_admin_uid: Option<u32>,
    /// `--cpu`: the core to stay on.
    pub cpu: Option<usize>,
    /// `--spin`: poll without ever sleeping.
    pub spin: bool,
    /// `--log-file`: where the log goes; `None` is standard error.
    pub log_file: Option<PathBuf>,
    /// `--log-format`: how a log line is spelled.
    pub log_format: LogFormat,
    /// `--log-level`, `--debug`: the least important message still logged; never `Off`.
    pub log_level: LevelFilter,
}

/// How a log line is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, message: for people.
    Text,
    /// One JSON object per line: for collectors.
    Json,
}

/// What the command line asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Run the daemon with these settings.
    Run(Config),
    /// `--check-config`: say whether a daemon could run with these settings, and exit.
    Check(Config),
    /// `--repair`: mend the data directory of these settings and exit.
    Repair(PathBuf),
    /// `--reshard`: give the cluster of these settings another number of shards and exit.
    Reshard {
        /// The settings.
        config: Config,
        /// How many shards there are.
        from: u32,
        /// How many there shall be.
        to: u32,
    },
    /// `--inspect`: show what is in a data directory and exit.
    Inspect {
        /// The directory.
        path: PathBuf,
        /// For programs.
        json: bool,
    },
    /// `--help`, `--version` or `--man`: write this to standard output and exit with 0.
    Print(String),
}

/// Why the settings cannot be used: one line that names the option, its value and what would be
/// right. Never quotes the value of `--auth-token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    exit: Exit,
    text: String,
}

impl ConfigError {
    /// What the process ends with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The command line or a variable is wrong in itself.
    fn usage(text: String) -> Self {
        let exit = Exit::Usage;
        Self { exit, text }
    }

    /// The settings can be read, but not used here or not together.
    fn unusable(text: String) -> Self {
        let exit = Exit::Config;
        Self { exit, text }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConfigError {}

/// Reads the settings. `args` begins with the program's name, as `std::env::args_os` does; `env`
/// answers what an environment variable holds.
///
/// A variable that is not UTF-8 should be passed on lossily and not left out: the replacement
/// characters are refused here, but a variable that is left out would silently become the default.
///
/// # Errors
///
/// An unknown option or key, a value that cannot be read, a configuration file or a token that
/// cannot be used.
pub fn load(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Outcome, ConfigError> {
    let (flags, instead) = match command::parse(args)? {
        command::Parsed::Flags { flags, instead } => (flags, instead),
        command::Parsed::Inspect { path, json } => return Ok(Outcome::Inspect { path, json }),
        command::Parsed::Print(text) => return Ok(Outcome::Print(text)),
    };
    let file = { ROWS.iter().filter(|row| row.flag == CONFIG) }
        .find_map(|row| Given::find(row, &flags, env, &[]))
        .map_or(Ok(Vec::new()), |it| file::read(&it.written_as, &it.text))?;
    let mut given: Vec<Given> = ROWS
        .iter()
        .filter_map(|row| Given::find(row, &flags, env, &file))
        .collect();
    keep_one_token(&mut given)?;
    // The weaker source is applied first. Where two rows set the same thing (`--debug`,
    // `--log-level`), the stronger source wins, and within one source the later row.
    given.sort_by_key(|one| one.source);
    let mut config = Config::default();
    for one in &given {
        one.apply(&mut config)?;
    }
    let is_in_file = |one: &Given| one.source == Source::File && one.row.flag == "auth-token";
    config.config_file_has_token = given.iter().any(is_in_file);
    let is_share_elsewhere = |one: &Given| one.source != Source::File && one.row.flag == SHARE;
    config.shares_are_in_file =
        config.config_file.is_some() && !given.iter().any(is_share_elsewhere);
    config.check_sockets()?;
    config.check_tls()?;
    let checked = config.cluster.check(config.data_dir.is_some());
    checked.map_err(ConfigError::unusable)?;
    match instead {
        Instead::Nothing => Ok(Outcome::Run(config)),
        Instead::Check => Ok(Outcome::Check(config)),
        Instead::Reshard { from, to } => Ok(Outcome::Reshard { config, from, to }),
        Instead::Repair => config.data_dir.map(Outcome::Repair).ok_or_else(|| {
            let text = "--repair: which directory? Name it with --data-dir";
            ConfigError::usage(text.to_owned())
        }),
    }
}

/// Reads the shares of a configuration file again.
///
/// # Errors
///
/// If the file cannot be used, or its shares cannot.
pub fn shares_in_file(path: &Path) -> Result<Vec<Share>, ConfigError> {
    let entries = file::read("--config", &path.to_string_lossy())?;
    let mut config = Config::BLANK;
    let row = ROWS.iter().find(|row| row.flag == SHARE);
    if let Some(given) = row.and_then(|row| Given::find(row, &[], &|_| None, &entries)) {
        given.apply(&mut config)?;
    }
    Ok(config.shares)
}

/// Those of these environment variables that look like settings of latchd and are none. A typing
/// error in a name must not go unnoticed, least of all in the name of a token's variable.
pub fn unknown_env(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &String| ROWS.iter().any(|row| row.env.contains(&name.as_str()));
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("LATCHD_") && !known(name))
        .collect();
    unknown.sort();
    unknown
}

impl Config {
    /// What the defaults of the table are applied to. Only fields without a default stay like this.
    const BLANK: Self = Self {
        config_file: None,
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        unix_socket: None,
        unix_socket_mode: 0,
        http_port: HttpPort::Off,
        http_unix_socket: None,
        http_host_names: Vec::new(),
        metrics_open: false,
        shares: Vec::new(),
        shares_are_in_file: false,
        get_secrets: false,
        access_log: false,
        data_dir: None,
        durability: Durability::Sync,
        cluster: Cluster::BLANK,
        default_lease_ttl: Millis::ZERO,
        gc_interval: Millis::ZERO,
        gc_max_idle: Millis::ZERO,
        auto_release_on_disconnect: true,
        deadlock_detection: false,
        wire_fence: WireFence::Auto,
        max_locks: None,
        max_holds: None,
        max_memory: MaxMemory::Unlimited,
        max_connections: None,
        max_waiters: None,
        max_keys: None,
        max_list_length: None,
        max_subscriptions: None,
        max_clients_per_adapter: None,
        max_clients: Vec::new(),
        max_range_locks_per_resource: None,
        max_range_locks_per_client: None,
        max_range_locks: None,
        max_range_wait: None,
        grace_period: Millis::ZERO,
        grace_policy: GracePolicy::Held,
        read_timeout: Millis::ZERO,
        write_timeout: None,
        shutdown_timeout: None,
        tls_cert: None,
        tls_key: None,
        tls_client_ca: None,
        auth_timeout: Millis::ZERO,
        tls_handshake_timeout: Millis::ZERO,
        auth_token: None,
        auth_token_file: None,
        config_file_has_token: false,
        unix_admin_uid: None,
        cpu: None,
        spin: false,
        log_file: None,
        log_format: LogFormat::Text,
        log_level: LevelFilter::Info,
    };

    /// Where to listen for the line protocol; its text has the brackets that IPv6 needs.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Whether the two protocols are kept apart: a socket speaks one of them.
    fn check_sockets(&self) -> Result<(), ConfigError> {
        if self.port != 0 && self.http_port == HttpPort::Asked(self.port) {
            let port = self.port;
            let text = format!("--port and --http-port are both {port}: choose another for one");
            return Err(ConfigError::unusable(text));
        }
        match (&self.unix_socket, &self.http_unix_socket) {
            (Some(line), Some(http)) if line == http => Err(ConfigError::unusable(format!(
                "--unix-socket and --http-unix-socket are both {line:?}: choose another for one"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether there is a key for the certificate, and a certificate for everything else.
    fn check_tls(&self) -> Result<(), ConfigError> {
        let missing = match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(_), None, _) => "--tls-cert needs the key of its certificate: set --tls-key",
            (None, Some(_), _) => "--tls-key needs the certificate of its key: set --tls-cert",
            (None, None, Some(_)) => {
                "--tls-client-ca works with TLS only: set --tls-cert and --tls-key"
            }
            _ => return Ok(()),
        };
        Err(ConfigError::unusable(missing.to_owned()))
    }

    /// Whether other machines can reach a daemon that asks them for neither a token nor a certificate.
    #[must_use]
    pub fn is_open_to_the_network(&self) -> bool {
        self.lets_all_in() && !self.host.to_canonical().is_loopback()
    }

    /// Whether clients are asked for neither a token nor a certificate.
    #[must_use]
    pub fn lets_all_in(&self) -> bool {
        self.auth_token.is_none() && self.tls_client_ca.is_none()
    }
}

/// The settings of a daemon started with no option and an empty environment.
impl Default for Config {
    fn default() -> Self {
        let mut config = Self::BLANK;
        for row in ROWS.iter().filter(|row| !row.default.is_empty()) {
            let done = (row.set)(&mut config, row.default);
            assert!(done.is_ok(), "--{} refuses its own default", row.flag);
        }
        config.http_port = config.http_port.if_free();
        config
    }
}

/// Where a value came from; the weaker source first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File,
    Env,
    Flag,
}

/// One option's value as somebody wrote it.
struct Given {
    row: &'static Row,
    source: Source,
    /// The flag or variable it was written as, or file, line and key, for the error.
    written_as: String,
    text: String,
}

impl Given {
    /// The flag if there is one, else the first of the row's variables that is set, else what the
    /// file says.
    fn find(
        row: &'static Row,
        flags: &[command::Flag],
        env: &dyn Fn(&str) -> Option<String>,
        file: &[file::Entry],
    ) -> Option<Self> {
        if let Some(flag) = flags.iter().find(|flag| flag.row.flag == row.flag) {
            return Some(Self {
                row,
                source: Source::Flag,
                written_as: flag.written_as.clone(),
                text: flag.text.clone(),
            });
        }
        let by_variable = row.env.iter().find_map(|&name| {
            // Compose files and unit files write an empty variable for one that is not set. But an
            // empty token is an error: the daemon would ask for none, and nobody would notice.
            let text = env(name).filter(|text| row.is_token() || !text.is_empty())?;
            Some(Self {
                row,
                source: Source::Env,
                written_as: name.to_owned(),
                text,
            })
        });
        by_variable.or_else(|| {
            let entry = file.iter().find(|entry| entry.row.flag == row.flag)?;
            Some(Self {
                row,
                source: Source::File,
                written_as: entry.written_as.clone(),
                text: entry.text.clone(),
            })
        })
    }

    fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        let name = &self.written_as;
        let wrong = match self.source {
            Source::File => ConfigError::unusable,
            Source::Env | Source::Flag => ConfigError::usage,
        };
        if self.text.contains(char::REPLACEMENT_CHARACTER) {
            return Err(wrong(format!("{name}: the value is not valid UTF-8")));
        }
        (self.row.set)(config, &self.text).map_err(|reason| match reason {
            Wrong::Value => wrong(format!("{name}: {:?} is not {}", self.text, self.row.rule)),
            Wrong::Because(why) => wrong(format!("{name}: {why}")),
            Wrong::File(why) => ConfigError::unusable(format!("{name}: {why}")),
        })
    }
}

/// Keeps the strongest source of a token and drops the others: a flag beats a variable, that beats
/// the configuration file, and the token itself beats its file. A file that is dropped is not even
/// read.
fn keep_one_token(given: &mut Vec<Given>) -> Result<(), ConfigError> {
    let tokens = || given.iter().filter(|one| one.row.is_token());
    for source in [Source::Flag, Source::File] {
        let both: Vec<&Given> = tokens().filter(|one| one.source == source).collect();
        if let [first, second] = both[..] {
            return Err(ConfigError::unusable(format!(
                "{} and {} both given: keep one, so that it is clear which token counts",
                first.written_as, second.written_as
            )));
        }
    }
    let best = tokens()
        .min_by_key(|one| Reverse(one.source)) // of two equals the first, which is the token itself
        .map(|one| one.row.flag);
    given.retain(|one| !one.row.is_token() || Some(one.row.flag) == best);
    Ok(())
}
