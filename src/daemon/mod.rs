//! Starting and stopping: what happens around the loop, never inside it.
//!
//! The pure layers take everything as an argument, and this is where it comes from: the wall clock,
//! random numbers, the settings, the sockets, what the system says of the process.

mod check;
#[cfg_attr(not(feature = "cluster"), path = "no_cluster.rs")]
mod cluster;
mod data_dir;
mod early_stop;
#[cfg(feature = "cluster")]
mod etcd_files;
mod exposed;
mod hint;
mod listen;
mod log_file;
pub mod logging;
mod machine;
mod output;
pub mod pin;
mod process;
mod random;
mod reload;
mod systemd;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use log::{LevelFilter, error, info, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;

pub use self::check::check_config;
pub use self::cluster::reshard;
pub use self::data_dir::{inspect, repair};
use self::early_stop::EarlyStop;
use self::reload::{More, Reload};
pub use self::systemd::Supervision;
use self::systemd::{Manager, handed_over};
use self::tls::TlsFiles;
use crate::access::Access;
use crate::base::{Fence, Millis};
use crate::closed::why_no_output;
use crate::config::{Config, Exit, MaxMemory, Secret};
use crate::engine::types::{Effects, GraceState, Input, Notes};
use crate::engine::{Engine, Origin, Rules, SearchLimits};
use crate::fence_start::{FENCES_PER_US, FenceStart, fence_start};
use crate::net::{Between, Clock, Listener, Reactor, RunError, Stream};
use crate::server::{Door, HttpSettings, Server, Settings};
use crate::store::Store;

/// Whoever manages this process. What the loop does now and then shares it with what SIGHUP does.
type SharedManager = Rc<RefCell<Manager>>;

/// What a server stands in, whatever it serves.
struct Surroundings {
    listeners: Vec<Listener>,
    tls: Option<TlsFiles>,
    /// What else SIGHUP reads again.
    more: Vec<More>,
    clock: Clock,
    manager: Option<SharedManager>,
    early_stop: EarlyStop,
}

/// Serves with these settings until told to stop, and returns how it ended. `supervision` is what the
/// environment says about a service manager. `unknown_env` names the variables that look like
/// settings and are none; they are reported in the log.
///
/// A failure is a log record like any other, so that a collector of JSON can read it.
#[must_use]
pub fn run(config: &Config, supervision: &Supervision, unknown_env: &[String]) -> Exit {
    let early_stop = outlive_stray_signals().and_then(|()| EarlyStop::listen());
    let handed = handed_over(supervision); // before there are threads
    let logs = logging::init(config, supervision.journal_reads_stderr()).map_err(|cause| {
        let path = config.log_file.as_deref().unwrap_or_else(|| Path::new(""));
        check::cannot_open_log(path, cause)
    });
    for name in unknown_env {
        warn!("the environment variable {name} is not a setting: see --help");
    }
    let manager = Manager::connect(supervision).map(|manager| Rc::new(RefCell::new(manager)));
    let served = logs
        .and(handed)
        .and_then(|handed| serve(config, handed, manager.clone(), early_stop?));
    let exit = match served {
        Ok(()) => {
            info!("stopped");
            Exit::Success
        }
        Err(error) => {
            error!("{error}");
            if let Some(manager) = &manager {
                manager.borrow_mut().tell_failed(&error.to_string());
            }
            error.exit
        }
    };
    output::finish();
    exit
}

/// Writes what was asked for to standard output. A reader that has seen enough (`--help | head`) is no error; any
/// other failure, such as a full device, is.
#[must_use]
pub fn print(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    let is_writable = why_no_output().map_or(Ok(()), |why| Err(io::Error::other(why)));
    let mut write = || writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    match is_writable.and_then(|()| write()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("latchd: cannot write to standard output: {error}");
            Exit::Storage
        }
        _ => Exit::Success,
    }
}

/// Signals that would end the process without being meant for that do nothing, from the first line
/// of the log on: a log that may not grow brings SIGXFSZ.
fn outlive_stray_signals() -> Result<(), DaemonError> {
    for signal in [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ] {
        // Nobody looks at the flag; that there is one replaces the default.
        flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(failed_to("catch signals"))?;
    }
    Ok(())
}

fn serve(
    config: &Config,
    handed: Vec<Listener>,
    manager: Option<SharedManager>,
    early_stop: EarlyStop,
) -> Result<(), DaemonError> {
    raise_descriptor_limit();
    for warning in exposed::warnings(config, true) {
        warn!("{warning}");
    }
    if let Some(cpu) = config.cpu {
        pin::pin_to_cpu(cpu).map_err(|cause| DaemonError {
            exit: Exit::Config,
            ..failed_to("pin the thread")(cause)
        })?;
    }
    if let Some(name) = cluster_of(config)? {
        return cluster::serve(config, name, handed, manager, early_stop);
    }
    let tls = TlsFiles::open(config)?;
    // Before the directory notes when this life began: a repair derives the first fence from that.
    let wall_clock_us = wall_clock_us();
    // The directory first: a second daemon ends before it listens anywhere.
    let data_dir = data_dir::open(config)?;
    let ceiling = data_dir.as_ref().map_or(0, |it| it.found.fence_ceiling.0);
    let origin = Origin {
        fence: first_fence(wall_clock_us, ceiling)?,
        seed: random::secret().map_err(failed_to("get random numbers"))?,
        salt_key: random::secret().map_err(failed_to("get random numbers"))?,
    };
    let clock = Clock::system();
    let Some(data_dir) = data_dir else {
        let epoch = wall_clock_us;
        let engine = Engine::new(
            Rules {
                epoch,
                zero_ns: zero_ns(&clock),
                ..rules(config)
            },
            origin,
        );
        let listeners = listen::listen(config, tls.as_ref(), handed)?;
        let settings = Settings {
            fences_per_us: FENCES_PER_US,
            ..settings_of_daemon(config, epoch, &listeners)
        };
        let server = Server::new(settings, engine);
        let surroundings = Surroundings {
            listeners,
            tls,
            more: Vec::new(),
            clock,
            manager,
            early_stop,
        };
        let goes_on = |_: &mut _, _| Between::Serve;
        return serve_with(config, server, surroundings, |_| Ok(()), goes_on);
    };
    let rules = Rules {
        durable: true,
        epoch: data_dir.life.epoch,
        zero_ns: zero_ns(&clock),
        ..rules(config)
    };
    let mut engine = Engine::new(rules, origin);
    data_dir.restore(&mut engine, &clock)?;
    data_dir.tell_restored(&engine);
    if early_stop.is_told() {
        info!("told to stop before serving");
        return Ok(()); // the journal has no record of this run, and ends as it was found
    }
    // Nobody connects before there is somebody to answer. And a start that fails here has served
    // nobody: the directory is then as it was.
    let listeners = listen::listen(config, tls.as_ref(), handed)?;
    let may_have_lost = data_dir.life.follows_loss;
    let serve = Input::Serve { may_have_lost };
    engine.apply(clock.now(), serve, &mut Effects::new());
    tell_grace(engine.view(clock.now()).grace(), may_have_lost);
    let remote = data_dir.remote();
    let settings = settings_of_daemon(config, data_dir.life.epoch, &listeners);
    let server = Server::with_store(settings, engine, data_dir.journal);
    let prepare = |reactor: &Reactor<_>| {
        let _ = remote.set(reactor.remote()); // nobody else sets it
        Ok(())
    };
    let surroundings = Surroundings {
        listeners,
        tls,
        more: Vec::new(),
        clock,
        manager,
        early_stop,
    };
    serve_with(config, server, surroundings, prepare, |_, _| Between::Serve)
}

/// The name of the cluster that the settings make this a member of, if they do.
fn cluster_of(config: &Config) -> Result<Option<&str>, DaemonError> {
    let why = match (&config.cluster.name, config.cluster.etcd.is_empty()) {
        (Some(name), false) => return Ok(Some(name)),
        (None, true) if config.cluster.shard.is_whole() => return Ok(None),
        (None, true) => "--shard: of which cluster? Name it with --cluster",
        (Some(_), true) => "--cluster: where is etcd? Name its members with --etcd",
        (None, false) => "--etcd: of which cluster? Name it with --cluster",
    };
    Err(DaemonError {
        exit: Exit::Config,
        ..failed_to("be a member of a cluster")(io::Error::other(why))
    })
}

/// Tells how long clients have to have back what they held.
fn tell_grace(grace: GraceState, may_have_lost: bool) {
    let GraceState { left, expected, .. } = grace;
    if left > Millis::ZERO {
        let refused = match may_have_lost {
            true => {
                "all new range locks are refused, since some that were acknowledged may be lost"
            }
            false => "`grace` tells how far it is, and `grace end` ends it",
        };
        info!(
            "{expected} clients have {} s to have back their range locks; {refused}",
            left.0.div_ceil(1_000)
        );
    }
}

/// Serves until told to stop. `prepare` sees the loop before it begins; `between` is asked before every turn.
fn serve_with<S: Store + 'static>(
    config: &Config,
    server: Server<Stream, S>,
    surroundings: Surroundings,
    prepare: impl FnOnce(&Reactor<S>) -> Result<(), DaemonError>,
    between: impl FnMut(&mut Server<Stream, S>, u32) -> Between,
) -> Result<(), DaemonError> {
    let Surroundings {
        listeners,
        tls,
        more,
        clock,
        manager,
        early_stop,
    } = surroundings;
    let address = address_of(&listeners, Door::Line);
    let is_open = is_open_to_the_network(config, &listeners);
    let serves_http_on_port = address_of(&listeners, Door::Http).is_some();
    let start_lines: Vec<String> = listeners.iter().map(start_line).collect();
    let mut reactor =
        Reactor::new(server, listeners, clock).map_err(failed_to("start the loop"))?;
    reactor
        .catch_signals()
        .map_err(failed_to("catch signals"))?;
    if early_stop.hand_over() {
        reactor
            .remote()
            .stop()
            .map_err(failed_to("stop the loop"))?;
    }
    let reload = Reload::new(config, tls, more, manager.clone());
    reactor.on_hangup(Box::new(move |server| reload.run(server)));
    prepare(&reactor)?;
    // Somebody who reads these lines may connect or send a signal at once, and both work by now.
    for line in start_lines {
        info!("latchd {} {line}", env!("CARGO_PKG_VERSION"));
    }
    // A member of a cluster begins as a standby, which holds no locks.
    if let Some(address) = address.filter(|_| config.cluster.name.is_none()) {
        let asks_for_token = config.auth_token.is_some();
        let hint = match config.tls_cert {
            None => hint::try_it(address, asks_for_token),
            Some(_) if config.tls_client_ca.is_some() => {
                hint::try_it_with_certificate(address, asks_for_token)
            }
            Some(_) => hint::try_it_encrypted(address, asks_for_token),
        };
        info!("{hint}");
    }
    match memory_max(config) >> 20 {
        0 => warn!("memory is not bounded: clients can make this process use all there is"),
        mebibytes => info!("clients may make this process use {mebibytes} MiB of memory"),
    }
    if is_open {
        let over = if serves_http_on_port {
            ", also over HTTP,"
        } else {
            ""
        };
        warn!(
            "other machines can connect{over} and no token is asked for: \
             set --auth-token-file, or --host 127.0.0.1"
        );
    }
    reactor.watch_log(output::is_behind, output::catch_up);
    if let Some(manager) = manager.clone() {
        manager.borrow_mut().tell_ready(reactor.seen());
        reactor.attend(move |now, seen| manager.borrow_mut().attend(now, seen));
    }
    if config.spin {
        reactor.spin();
    }
    let mut store = reactor.run_with(between).map_err(|error| match error {
        RunError::Poll(cause) => failed_to("go on polling")(cause),
        RunError::Store(why) => storage_failed(why),
        RunError::Between(why) => failed_to("go on")(io::Error::other(why)),
    })?;
    if let Some(manager) = manager {
        manager.borrow_mut().tell_stopping(); // if that went faster than anybody looked
    }
    store.stop().map_err(storage_failed)
}

/// Whether other machines can reach us, who ask them for nothing.
fn is_open_to_the_network(config: &Config, listeners: &[Listener]) -> bool {
    let mut addresses = listeners.iter().filter_map(Listener::address);
    config.lets_all_in() && addresses.any(|it| !it.ip().to_canonical().is_loopback())
}

/// What the log says of a listener when the daemon starts, behind its name and version.
fn start_line(listener: &Listener) -> String {
    match (listener.door(), listener.address()) {
        (Door::Line, _) if listener.is_encrypted() => format!("listens on {listener} with TLS"),
        (Door::Line, _) => format!("listens on {listener}"),
        (Door::Http, None) => format!("serves HTTP on {listener}"),
        (Door::Http, Some(address)) => {
            let is_encrypted = listener.is_encrypted();
            let protocol = if is_encrypted { "HTTPS" } else { "HTTP" };
            let page = hint::dashboard(address, is_encrypted);
            format!("serves {protocol} on {listener}: a browser shows the dashboard at {page}")
        }
    }
}

/// The TCP address at which a protocol is spoken, if there is one.
fn address_of(listeners: &[Listener], door: Door) -> Option<SocketAddr> {
    let mut listeners = listeners.iter().filter(|it| it.door() == door);
    listeners.find_map(Listener::address)
}

/// What was not acknowledged is not kept, and nothing more can be.
fn storage_failed(why: String) -> DaemonError {
    DaemonError {
        exit: Exit::Storage,
        ..failed_to("keep what was decided")(io::Error::other(why))
    }
}

/// Why the daemon could not start or had to stop.
struct DaemonError {
    /// What was tried.
    attempt: String,
    /// What came of it.
    cause: io::Error,
    /// What an operator can do about it; empty where the cause says so itself.
    advice: String,
    exit: Exit,
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempt, self.cause)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

fn failed_to(attempt: &str) -> impl FnOnce(io::Error) -> DaemonError {
    move |cause| DaemonError {
        attempt: format!("cannot {attempt}"),
        cause,
        advice: String::new(),
        exit: Exit::Failure,
    }
}

/// What the settings say about keys.
#[must_use]
pub fn rules(config: &Config) -> Rules {
    Rules {
        locks_max: config.max_locks.unwrap_or(0),
        holds_max: config.max_holds.unwrap_or(0),
        waiters_per_key_max: config.max_waiters.unwrap_or(0),
        keys_max: config.max_keys.unwrap_or(0),
        list_length_max: config.max_list_length.unwrap_or(0),
        subscriptions_max: config.max_subscriptions.unwrap_or(0),
        lease_default: config.default_lease_ttl,
        auto_release: config.auto_release_on_disconnect,
        clients_per_adapter_max: config.max_clients_per_adapter.unwrap_or(0),
        clients_max: config.max_clients.clone(),
        ranges_per_resource_max: config.max_range_locks_per_resource.unwrap_or(0),
        ranges_per_client_max: config.max_range_locks_per_client.unwrap_or(0),
        ranges_max: config.max_range_locks.unwrap_or(0),
        range_wait_max: config.max_range_wait.unwrap_or_default(),
        grace_period: config.grace_period,
        grace_policy: config.grace_policy,
        gc_interval: config.gc_interval,
        gc_idle_max: config.gc_max_idle,
        deadlock_detection: config.deadlock_detection,
        search_limits: SearchLimits::default(),
        notes: match config.log_level {
            LevelFilter::Trace => Notes::All,
            LevelFilter::Debug => Notes::Expiries,
            _ => Notes::Off,
        },
        durable: false,
        epoch: 1,
        zero_ns: 0,
    }
}

/// What the settings say about connections.
#[must_use]
pub fn settings(config: &Config, epoch: u64) -> Settings {
    Settings {
        access: access(config),
        wire_fence: config.wire_fence,
        connections_max: config.max_connections.unwrap_or(0),
        memory_max: memory_max(config),
        read_timeout: config.read_timeout,
        write_timeout: config.write_timeout.unwrap_or_default(),
        handshake_timeout: config.tls_handshake_timeout,
        auth_timeout: config.auth_timeout,
        shutdown_timeout: config.shutdown_timeout.unwrap_or_default(),
        epoch,
        shares: config.shares.clone(),
        http: HttpSettings {
            host_names: config.http_host_names.clone(),
            get_secrets: config.get_secrets,
            access_log: config.access_log,
            metrics_open: config.metrics_open,
            ..HttpSettings::default()
        },
        ..Settings::default()
    }
}

/// Who may do what.
fn access(config: &Config) -> Access {
    let access = config.auth_token.as_ref().map(Secret::access);
    let access = access.cloned().unwrap_or_default();
    access.with_admin_uid(config.unix_admin_uid)
}

/// The same, with what is known only where a daemon runs.
fn settings_of_daemon(config: &Config, epoch: u64, listeners: &[Listener]) -> Settings {
    let settings = settings(config, epoch);
    Settings {
        http: HttpSettings {
            line_port: address_of(listeners, Door::Line).map(|it| it.port()),
            unix_ms: wall_ms,
            process: process::figures,
            ..settings.http
        },
        lost_log_lines: output::lost_lines,
        ..settings
    }
}

/// The bound on memory in bytes; 0 is none.
fn memory_max(config: &Config) -> usize {
    let bytes = match config.max_memory {
        MaxMemory::Unlimited => 0,
        MaxMemory::Bytes(bytes) => bytes.get(),
        MaxMemory::Half => machine::memory_bytes().map_or(0, |bytes| bytes / 2),
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Where fences start: above all of `ceiling`, and where a run without a data directory would start,
/// so that fences grow whether there is one or not. Unless the clock makes that impossible.
fn first_fence(wall_clock_us: u64, ceiling: u64) -> Result<u64, DaemonError> {
    let by_clock = match fence_start(wall_clock_us, Fence::LIMIT) {
        FenceStart::At(fence) => fence,
        FenceStart::Doubtful(fence) => {
            if ceiling == 0 {
                warn!(
                    "the clock shows a time before this program was written: \
                     fences may be below those of an earlier run; set the clock and restart"
                );
            }
            fence
        }
        FenceStart::TooLate if ceiling != 0 => 0,
        FenceStart::TooLate => {
            return Err(DaemonError {
                attempt: "cannot choose a first fence".to_owned(),
                cause: io::Error::other("the clock shows a time after the year 2050"),
                advice: "set the clock".to_owned(),
                exit: Exit::Failure,
            });
        }
    };
    Ok(by_clock.max(ceiling))
}

/// Microseconds since 1970.
fn wall_clock_us() -> u64 {
    u64::try_from(logging::wall_clock().as_micros()).unwrap_or(u64::MAX)
}

/// The time of day when the loop's clock was at zero, in nanoseconds since 1970.
fn zero_ns(clock: &Clock) -> u64 {
    let wall_ns = wall_clock_us().saturating_mul(1_000);
    wall_ns.saturating_sub(clock.now().0)
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    wall_clock_us() / 1_000
}

/// Every connection needs a descriptor, and the usual limit of a shell is far too low for a server.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(limit) = current.filter(|_| current != maximum) else {
        return;
    };
    let current = maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current, maximum }) {
        warn!("cannot raise the limit of open files above {limit}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_far_in_the_future_is_a_reason_not_to_start() {
        const YEAR_2255_US: u64 = 8_993_721_600_000_000;
        let error = first_fence(YEAR_2255_US, 0).unwrap_err();
        assert_eq!(error.exit, Exit::Failure);
        assert_eq!(
            error.to_string(),
            "cannot choose a first fence: the clock shows a time after the year 2050; set the clock"
        );
        // What the data directory says is enough.
        assert_eq!(first_fence(YEAR_2255_US, 7).ok(), Some(7));
    }

    #[test]
    fn fences_start_above_the_directory_and_above_a_run_without_one() {
        const YEAR_2026_US: u64 = 1_795_000_000_000_000;
        let without = first_fence(YEAR_2026_US, 0).unwrap_or(0);
        assert!(without > 0);
        assert_eq!(first_fence(YEAR_2026_US, 5).ok(), Some(without));
        assert_eq!(
            first_fence(YEAR_2026_US, without + 5).ok(),
            Some(without + 5)
        );
    }
}
