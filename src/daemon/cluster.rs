//! A member of a cluster: its settings, and where its threads are.
//!
//! The listeners stay open for as long as the process lives; which server stands behind them is for
//! `cluster/stage.rs` to say.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use log::{error, info};

use super::etcd_files::EtcdFiles;
use super::tls::TlsFiles;
use super::{
    DaemonError, EarlyStop, SharedManager, Surroundings, address_of, cluster_of, failed_to,
    first_fence, listen, random, rules, serve_with, settings_of_daemon, tell_grace, wall_clock_us,
    zero_ns,
};
use crate::base::Nanos;
use crate::cluster::role::Terms;
use crate::cluster::{
    Change, Follower, Member, NotResharded, Options, Reshard, Resharded, Scene, Stage,
    look_at_others,
};
use crate::config::{Cluster, Config, Exit, HttpPort};
use crate::engine::{Origin, Rules};
use crate::etcd::{Endpoints, Etcd, Gateway, Watcher, Watching};
use crate::net::{Between, Clock, Listener, Remote, boot_time};
use crate::server::Door;
use crate::store::etcd::{Bell, Place, Tally};

/// How much news waits for the reactor at most: some MiB of records.
const NEWS_MAX: usize = 64;

/// Serves as a member of a cluster until told to stop.
pub(super) fn serve(
    config: &Config,
    name: &str,
    handed: Vec<Listener>,
    manager: Option<SharedManager>,
    early_stop: EarlyStop,
) -> Result<(), DaemonError> {
    let etcd = EtcdFiles::open(config)?;
    etcd.tell();
    let tls = TlsFiles::open(config)?;
    let clock = Clock::system();
    let listeners = listen::listen(config, tls.as_ref(), handed)?;
    let [nonce] = random::secret().map_err(failed_to("get random numbers"))?;
    let terms = terms(config);
    let options = Options {
        cluster: name.to_owned(),
        shard: config.cluster.shard,
        terms,
        advertise: advertised(
            config.cluster.advertise.as_deref(),
            address_of(&listeners, Door::Line),
            Door::Line,
        )?,
        advertise_http: url(
            config,
            advertised(
                config.cluster.advertise_http.as_deref(),
                address_of(&listeners, Door::Http),
                Door::Http,
            )?,
        ),
        batch_bytes: config.cluster.batch_bytes,
        trim_bytes: config.cluster.trim_bytes,
        quota_bytes: config.cluster.quota_bytes,
        compacts: config.cluster.compacts,
        nonce,
    };
    let here = Arc::new(Here {
        remote: OnceLock::new(),
        endpoints: endpoints(config, &etcd),
    });
    let name = match options.shard.is_whole() {
        true => name.to_owned(),
        false => format!("{name}, shard {}", options.shard),
    };
    info!(
        "member of cluster {name}: clients are sent to {} when this one leads",
        options.advertise
    );
    info!(
        "longest round trip to etcd: {} ms, with --cluster-ttl {}s",
        terms.round_trip_max().0,
        terms.ttl_s
    );
    let place: Arc<dyn Place> = Arc::clone(&here) as _;
    let member = Member::new(options, place);
    let (sender, news) = sync_channel(NEWS_MAX);
    let rules = Rules {
        durable: true,
        zero_ns: zero_ns(&clock),
        ..rules(config)
    };
    origin_works()?;
    let scene = Scene {
        rules,
        settings: settings_of_daemon(config, 0, &listeners),
        origin: Rc::new(origin),
        clock: {
            let clock = clock.clone();
            Box::new(move || clock.now())
        },
        wall_us: Arc::new(wall_clock_us),
    };
    let mut stage = Stage::new(&member, news, scene);
    let server = stage.standby();
    let lock_clock = clock.clone();
    let mut signals_heard = 0;
    let mut ended = None;
    let served = serve_with(
        config,
        server,
        Surroundings {
            listeners,
            tls,
            more: etcd.into_reload().into_iter().collect(),
            clock,
            manager,
            early_stop,
        },
        |reactor| {
            let _ = here.remote.set(reactor.remote()); // nobody else sets it
            let started = Follower::start(&member, sender).and_then(|()| look_at_others(&member));
            started.map_err(failed_to("start a thread"))
        },
        |server, stops| {
            let signals = here.remote.get().map_or(0, Remote::user_signals);
            let is_told_to_resign = std::mem::replace(&mut signals_heard, signals) != signals;
            let mut change = Change::Serve;
            if is_told_to_resign && stops == 0 {
                change = stage.resign(server);
            }
            if change == Change::Serve {
                change = stage.between(server, stops);
            }
            match change {
                Change::Serve => Between::Serve,
                Change::Leads { may_have_lost } => {
                    let view = server.engine().view(lock_clock.now());
                    tell_grace(view.grace(), may_have_lost);
                    Between::Replaced
                }
                Change::Follows => Between::Replaced,
                Change::Leaves(most) => Between::Holds(most),
                Change::End => Between::End,
                Change::Failed(why) => Between::Failed(why),
                Change::Unfit(why) => {
                    ended = Some(unusable("be a member of a cluster", why));
                    Between::End
                }
            }
        },
    );
    ended.map_or(served, Err)
}

/// Where etcd is, with the time that one of its members may take to let us in.
fn endpoints(config: &Config, etcd: &EtcdFiles) -> Endpoints {
    let within = Duration::from_millis(terms(config).connect_within().0);
    etcd.endpoints().connecting_within(within)
}

fn terms(config: &Config) -> Terms {
    Terms {
        ttl_s: config.cluster.ttl.0 / 1_000,
        margin: config.cluster.margin(),
    }
}

/// Where the threads of this member are: in this process, at the time of this machine.
struct Here {
    remote: OnceLock<Remote>,
    endpoints: Endpoints,
}

impl Here {
    fn gateway(&self, first: usize) -> Gateway {
        Gateway::new(&self.endpoints, first)
    }
}

impl Place for Here {
    fn now(&self) -> Nanos {
        boot_time()
    }

    fn wake(&self) {
        if let Some(remote) = self.remote.get() {
            let _ = remote.wake(); // a loop that cannot be woken is over
        }
    }

    fn spawn(&self, name: &'static str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let ends_with_it = move || {
            let guard = EndsWithIt(name);
            run();
            drop(guard);
        };
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(ends_with_it).map(|_| ())
    }

    fn wait(&self, bell: &Arc<Bell>, heard: u64, most: Duration) {
        bell.sleep(heard, most);
    }

    fn etcd(&self, first: usize) -> Box<dyn Etcd + Send> {
        Box::new(self.gateway(first))
    }

    fn etcd_of_log(&self, first: usize) -> Box<dyn Etcd + Send> {
        Box::new(self.gateway(first).near_leader())
    }

    fn watch(&self, first: usize) -> Box<dyn Watching + Send> {
        Box::new(Watcher::new(self.gateway(first)))
    }

    fn is_login_idle(&self) -> bool {
        self.endpoints.is_login_idle()
    }
}

/// The process ends with this thread if it panics, however it was built. Without one of its threads a
/// leader would keep a lease that it does not use, or a standby would never take over.
struct EndsWithIt(&'static str);

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        if thread::panicking() {
            error!("the thread {} panicked: the process ends", self.0);
            super::output::finish();
            process::abort();
        }
    }
}

/// Where fences and tokens of a new table begin: above this fence, and where a daemon alone would begin. The
/// clock was looked at when the process started; if it is of no use any more, what the log says is enough.
fn origin(floor: u64) -> Origin {
    let secret = |_| panic!("the system gives no random numbers");
    Origin {
        fence: first_fence(wall_clock_us(), floor.max(1)).unwrap_or(floor),
        seed: random::secret().unwrap_or_else(secret),
        salt_key: random::secret().unwrap_or_else(|_| panic!("the system gives no random numbers")),
    }
}

/// What a table needs can be had: looked at once, at the start.
fn origin_works() -> Result<(), DaemonError> {
    first_fence(wall_clock_us(), 0)?;
    random::secret::<2>().map_err(failed_to("get random numbers"))?;
    Ok(())
}

/// Whether a daemon with these settings could be a member, as far as it can be told without etcd.
pub(super) fn check(config: &Config, _name: &str) -> Result<(), DaemonError> {
    let http = match config.http_port {
        HttpPort::Off => None,
        HttpPort::Asked(port) | HttpPort::IfFree(port) => Some(SocketAddr::new(config.host, port)),
    };
    let Cluster {
        advertise,
        advertise_http,
        ..
    } = &config.cluster;
    advertised(advertise.as_deref(), Some(config.listen_addr()), Door::Line)?;
    advertised(advertise_http.as_deref(), http, Door::Http)?;
    EtcdFiles::open(config).map(drop)
}

/// `latchd --reshard`: gives a cluster another number of shards.
#[must_use]
pub fn reshard(config: &Config, from: u32, to: u32) -> Exit {
    match try_reshard(config, from, to) {
        Ok(text) => {
            say(&text);
            Exit::Success
        }
        Err(error) => {
            eprintln!("latchd: {error}");
            error.exit
        }
    }
}

fn try_reshard(config: &Config, from: u32, to: u32) -> Result<String, DaemonError> {
    let attempt = "change the number of shards";
    let Some(name) = cluster_of(config)? else {
        let why = "--reshard: of which cluster? Name it with --cluster, and etcd with --etcd";
        return Err(unusable(attempt, why.to_owned()));
    };
    let [nonce] = random::secret().map_err(failed_to("get random numbers"))?;
    let job = Reshard {
        cluster: name.to_owned(),
        from,
        to,
        nonce,
        piece_bytes: config.cluster.batch_bytes,
    };
    let endpoints = endpoints(config, &EtcdFiles::open(config)?);
    let mut etcd = Gateway::new(&endpoints, nonce as usize % 64);
    match job.run(&mut etcd, &mut say) {
        Ok(Resharded::Done { map, tally }) => {
            let Tally {
                grants,
                values,
                ranges,
            } = tally;
            Ok(format!(
                "cluster {name} has {} shards now, map {}: {grants} held, {values} counters and values, \
                 {ranges} byte ranges; start its members with --shard 0/{to} to {}/{to}",
                map.shards,
                map.epoch,
                to - 1
            ))
        }
        Ok(Resharded::Before(map)) => Ok(format!(
            "cluster {name} has {} shards already, map {}: nothing is left to do",
            map.shards, map.epoch
        )),
        Err(why) => {
            let exit = match why {
                NotResharded::Other(_) => Exit::Config,
                NotResharded::InUse(_) | NotResharded::Trouble(_) => Exit::Failure,
            };
            let cause = io::Error::other(why.to_string());
            Err(DaemonError {
                exit,
                ..failed_to(attempt)(cause)
            })
        }
    }
}

fn say(text: &str) {
    // A reader that has seen enough is no reason to stop halfway.
    let _ = writeln!(io::stdout(), "{text}");
}

/// Ports speak TLS if there is a certificate, and whoever is sent there has to know.
fn url(config: &Config, address: String) -> String {
    match (address.is_empty(), &config.tls_cert) {
        (true, _) => address,
        (false, Some(_)) => format!("https://{address}"),
        (false, None) => format!("http://{address}"),
    }
}

/// Where other members send clients of a door: what was set, or where this one listens.
fn advertised(
    set: Option<&str>,
    listens_on: Option<SocketAddr>,
    door: Door,
) -> Result<String, DaemonError> {
    let option = match door {
        Door::Line => "--advertise",
        Door::Http => "--advertise-http",
    };
    match (set, listens_on) {
        (Some(address), _) => Ok(address.to_owned()),
        (None, None) => Ok(String::new()),
        (None, Some(address)) if !address.ip().is_unspecified() => Ok(address.to_string()),
        (None, Some(_)) => Err(unusable(
            "be a member of a cluster",
            format!(
                "{option} is needed: it listens on every interface, and nobody knows which to name"
            ),
        )),
    }
}

fn unusable(attempt: &str, why: String) -> DaemonError {
    DaemonError {
        exit: Exit::Config,
        ..failed_to(attempt)(io::Error::other(why))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn here() -> Here {
        Here {
            remote: OnceLock::new(),
            endpoints: Endpoints::parse("http://127.0.0.1:1").unwrap(),
        }
    }

    /// What the next test starts: its process has to end, and not only its thread.
    #[test]
    #[ignore = "ends its process"]
    fn child_whose_thread_panics() {
        let panics = || panic!("on purpose");
        here().spawn("latchd-test", Box::new(panics)).unwrap();
        let bell = Arc::new(Bell::default());
        here().wait(&bell, bell.heard(), Duration::from_secs(60));
    }

    #[test]
    fn a_member_ends_with_any_of_its_threads() {
        let mut child = process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "child_whose_thread_panics"]);
        let ended = child.output().unwrap();
        const SIGABRT: i32 = 6;
        assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    }
}
