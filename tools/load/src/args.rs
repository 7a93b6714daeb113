//! The command line: its options, and what they mean.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::failover;
use crate::hostile::SCENES;
use crate::options::Options;
use crate::plans::PLANS;
use crate::run::spec::{Keys, Spec, Workload};
use crate::scenarios::leases::Shape;
use crate::servers::target::Target;

/// What to do.
pub(crate) enum Action {
    Run(Box<Spec>, Options),
    Plan(String, Options),
    Proof {
        svg: Option<PathBuf>,
        options: Options,
    },
    Compare {
        svg: Option<PathBuf>,
        options: Options,
    },
    /// A cluster whose leaders are taken away under load.
    Failover(failover::Settings),
    /// A picture of figures that are written down.
    Draw {
        page: PathBuf,
    },
    /// The process that the plan `storm` starts and kills, see `scenarios::holders`.
    Holders {
        target: Target,
        count: usize,
        run: u16,
    },
    /// The process that attacks, see `hostile::process`.
    Attack {
        scene: String,
        scale: f64,
        target: Target,
    },
    /// The process that becomes a server, see `servers::child`.
    Child {
        parent: u32,
        words: Vec<OsString>,
    },
    Ceiling {
        port: u16,
        unix: Option<PathBuf>,
        cpu: Option<usize>,
        seconds: u64,
    },
}

const EXAMPLES: &str = "\
Examples:
  latch-load plan quick                       starts latchd beside it, loads it, stops it
  latch-load plan throughput --target latchd://127.0.0.1:6388
  latch-load run --connections 1 --seconds 5
  latch-load run --workload rw --keys zipf --key-count 1000 --hold 50 --rate 20000
  latch-load compare --with redis,ceiling --svg compare.svg
  latch-load plan soak --via client           the client that programs use, for ten minutes
  latch-load proof > proof.md                 every target, about six minutes
  latch-load plan hostile --only patterns,pos --rounds 1
  latch-load draw proof.md > proof.svg        a picture of its comparison

Targets: latchd://host:port, latchd://member+member (with --via client), http://host:port and unix://path (latchd), dflockd://host:port,
redis://host:port, ceiling://host:port.
Throughput counts answered requests: an acquire and its release are two.
While it loads it checks: one holder at a time, growing fences, first come first served on shared
locks, every request answered once. Exit code: 0 when all answers were right, 1 when one was wrong
or something broke, 2 when the arguments make no sense.
";

fn command() -> Command {
    let mut after = String::from("Plans:\n");
    for plan in &PLANS {
        after.push_str(&format!("  {:<12}{}\n", plan.name, plan.shows));
    }
    after.push_str(&format!(
        "\nScenes of the plan hostile:\n  {}\n\n",
        SCENES.map(|it| it.name).join(" ")
    ));
    after.push_str(EXAMPLES);
    Command::new("latch-load")
        .about("Loads a lock server, checks every answer, and says how fast it was")
        .after_help(after)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(common(run(Command::new("run").about("One run, described by options"))))
        .subcommand(common(
            Command::new("plan")
                .about("A named plan, see below")
                .arg(Arg::new("name").required(true).value_name("NAME").value_parser(
                    PLANS.map(|plan| plan.name),
                ))
                .arg(count())
                .arg(via())
                .arg(number::<f64>("scale", "X", "hostile: how large the attacks are [1]"))
                .arg(
                    Arg::new("only").long("only").value_name("LIST").value_delimiter(',')
                        .help("hostile: only these scenes, by name"),
                )
                .arg(
                    Arg::new("dir").long("dir").value_name("PATH")
                        .value_parser(value_parser!(PathBuf))
                        .help("durable: below this directory, on the disk to measure [the system's temporary one]"),
                )
                .arg(
                    Arg::new("etcd").long("etcd").value_name("URLS")
                        .help("cluster: where etcd is, as for latchd"),
                )
                .arg(number::<u64>("ttl-ms", "MS", "leases: how long a lease lasts [800]"))
                .arg(number::<u64>("hold-ms", "MS", "leases: how long it is held [30]"))
                .arg(number::<u64>("jitter-ms", "MS", "leases: how much longer, at most, by chance [30]"))
                .arg(number::<f64>("failrate", "P", "leases: how likely a holder stalls until its time is over [0.03]"))
                .arg(with("").help("redis, where a scenario has something to compare with it")),
        ))
        .subcommand(common(
            Command::new("compare")
                .about("latchd, or --target, beside others in one interleaved run, ratios first")
                .arg(with(EVERYBODY))
                .arg(svg()),
        ))
        .subcommand(common(
            Command::new("proof")
                .about("Every target of docs/benchmarks.md in one interleaved run: wanted, measured, met or not")
                .arg(with(EVERYBODY))
                .arg(count())
                .arg(svg()),
        ))
        .subcommand(
            Command::new("failover")
                .about("Loads a cluster that runs, has its leader taken away or something else done to it again and again, and checks every answer")
                .arg(
                    Arg::new("server").long("server").value_name("A+B+C").required(true)
                        .help("The members"),
                )
                .arg(
                    Arg::new("step").long("step").value_name("COMMAND").required(true)
                        .help("Run by a shell as COMMAND FAULT ROUND, and as COMMAND heal ROUND when grants come again: returns when that is done"),
                )
                .arg(
                    Arg::new("faults").long("faults").value_name("LIST").value_delimiter(',')
                        .default_value("kill,stop,term").help("What is done to the cluster, in turn"),
                )
                .arg(
                    Arg::new("until-healed").long("until-healed").value_name("LIST").value_delimiter(',')
                        .help("The faults during which nothing can be granted: they are healed after two seconds, and only then grants are waited for"),
                )
                .arg(
                    Arg::new("within").long("within").value_name("FAULT=SECONDS").value_delimiter(',')
                        .help("How long at most nothing may be granted; the median of a fault's rounds is judged, and a target that is missed is no error"),
                )
                .arg(number::<usize>("rounds", "N", "How often").default_value("9")),
        )
        .subcommand(
            Command::new("draw")
                .about("Prints the picture of a comparison that is written down, as compare and proof print it")
                .arg(
                    Arg::new("page").required(true).value_name("FILE")
                        .value_parser(value_parser!(PathBuf)).help("A Markdown file with its tables"),
                ),
        )
        .subcommand(
            Command::new("holders")
                .hide(true)
                .arg(Arg::new("target").long("target").required(true))
                .arg(number::<usize>("count", "N", "How many locks"))
                .arg(number::<u16>("run", "N", "The run their names belong to")),
        )
        .subcommand(
            Command::new("attack")
                .hide(true)
                .arg(Arg::new("scene").long("scene").required(true))
                .arg(Arg::new("target").long("target").required(true))
                .arg(number::<f64>("scale", "X", "How large it is").required(true))
                .arg(number::<SocketAddr>("http", "ADDRESS", "Where it speaks HTTP"))
                .arg(number::<u32>("pid", "PID", "The server's process").required(true)),
        )
        .subcommand(
            Command::new("child")
                .hide(true)
                .arg(number::<u32>("parent", "PID", "Whose end is its end").required(true))
                .arg(
                    Arg::new("words").last(true).num_args(1..).required(true)
                        .value_parser(value_parser!(OsString)),
                ),
        )
        .subcommand(
            Command::new("ceiling")
                .about("A server that only moves bytes, on loopback: what is possible at best")
                .arg(number::<u16>("port", "PORT", "TCP port; 0 takes any free one").default_value("6389"))
                .arg(
                    Arg::new("unix").long("unix").value_name("PATH")
                        .value_parser(value_parser!(PathBuf)).help("Listen on this socket file too"),
                )
                .arg(number::<usize>("cpu", "CORE", "Stay on this core"))
                .arg(number::<u64>("seconds", "S", "End after this long").default_value("86400")),
        )
}

/// The servers to compare with, unless the command line names others.
const EVERYBODY: &str = "redis,redis-del,dflockd,ceiling";

fn with(usual: &'static str) -> Arg {
    let arg = Arg::new("with")
        .long("with")
        .value_name("LIST")
        .value_delimiter(',');
    let arg = if usual.is_empty() {
        arg
    } else {
        arg.default_value(usual)
    };
    arg.help("redis (script), redis-del (plain DEL), dflockd, ceiling, or targets like dflockd://host:port; what is not installed is left out")
}

fn svg() -> Arg {
    let arg = Arg::new("svg").long("svg").value_name("FILE");
    arg.value_parser(value_parser!(PathBuf))
        .help("Draw the comparison")
}

fn via() -> Arg {
    let arg = Arg::new("via").long("via").value_name("HOW");
    arg.value_parser(["loop", "client"])
        .help("A loop with connections of its own [loop], or threads with the client that programs use; plans leave out what that cannot do")
}

fn count() -> Arg {
    number::<usize>(
        "count",
        "N",
        "At most so many locks, connections or leases in a scenario",
    )
}

fn number<T>(name: &'static str, value: &'static str, help: &'static str) -> Arg
where
    T: std::str::FromStr + Clone + Send + Sync + 'static,
    <T as std::str::FromStr>::Err: std::error::Error + Send + Sync + 'static,
{
    let parse = |text: &str| text.parse::<T>();
    Arg::new(name)
        .long(name)
        .value_name(value)
        .help(help)
        .value_parser(parse)
}

fn common(command: Command) -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    command
        .arg(Arg::new("target").long("target").value_name("URL").help("A server that runs already; otherwise the latchd beside this program is started and stopped"))
        .arg(number::<f64>("seconds", "S", "How long each run measures"))
        .arg(number::<f64>("warmup", "S", "How long each run warms up"))
        .arg(number::<usize>("rounds", "N", "How often; several runs take turns"))
        .arg(number::<usize>("cpu", "CORE", "Load from this core [the second allowed one]"))
        .arg(number::<usize>("server-cpu", "CORE", "Servers started here stay on this core [the first allowed one]"))
        .arg(flag("spin", "Start latchd with --spin"))
        .arg(flag("json", "Print JSON"))
}

fn run(command: Command) -> Command {
    command
        .arg(
            Arg::new("workload")
                .long("workload")
                .value_name("KIND")
                .default_value("lock")
                .value_parser(Workload::ALL.map(Workload::name))
                .help("What each connection does"),
        )
        .arg(number::<usize>("connections", "N", "Connections").default_value("64"))
        .arg(
            number::<usize>(
                "pipeline",
                "N",
                "Requests of one connection on their way at once",
            )
            .default_value("1"),
        )
        .arg(
            Arg::new("keys")
                .long("keys")
                .value_name("HOW")
                .default_value("own")
                .value_parser(["own", "shared", "zipf"])
                .help("Own keys, or all choose among --key-count, evenly or by zipf"),
        )
        .arg(number::<u32>(
            "key-count",
            "N",
            "How many shared or zipf keys [1 shared, 1000 zipf]",
        ))
        .arg(number::<u32>("slots", "N", "Slots of a semaphore").default_value("3"))
        .arg(number::<u64>("hold", "US", "Hold for so many microseconds").default_value("0"))
        .arg(
            number::<u64>(
                "think",
                "US",
                "Wait so many microseconds before the next cycle",
            )
            .default_value("0"),
        )
        .arg(number::<u64>(
            "rate",
            "N",
            "Open loop: start so many cycles per second; latency counts from when each was due",
        ))
        .arg(
            number::<usize>("idle", "N", "Connections beside these that say nothing")
                .default_value("0"),
        )
        .arg(via())
        .arg(
            Arg::new("del")
                .long("del")
                .action(ArgAction::SetTrue)
                .help("Redis: release with DEL instead of the script that compares first"),
        )
}

/// Reads the command line, or says what is wrong with it. If it asks for help, prints that and
/// exits.
pub(crate) fn read() -> Result<Action, String> {
    let matches = command().get_matches();
    Ok(match matches.subcommand() {
        Some(("run", it)) => {
            let (mut spec, options) = (spec(it)?, options(it)?);
            options.apply(&mut spec);
            if let Some(complaint) = spec.complaint() {
                return Err(complaint);
            }
            Action::Run(Box::new(spec), options)
        }
        Some(("plan", it)) => {
            if let Some(other) = list(it, "with").iter().find(|it| *it != "redis") {
                return Err(format!(
                    "--with {other}: a plan can only be compared with redis; for others, see compare"
                ));
            }
            Action::Plan(get(it, "name").unwrap_or_default(), options(it)?)
        }
        Some(("compare", it)) => Action::Compare {
            svg: get(it, "svg"),
            options: options(it)?,
        },
        Some(("proof", it)) => Action::Proof {
            svg: get(it, "svg"),
            options: options(it)?,
        },
        Some(("failover", it)) => Action::Failover(failover::Settings {
            server: get(it, "server").unwrap_or_default(),
            step: get(it, "step").unwrap_or_default(),
            faults: list(it, "faults"),
            until_healed: list(it, "until-healed"),
            within: failover::parse_within(&list(it, "within"))?,
            rounds: get(it, "rounds").unwrap_or_default(),
        }),
        Some(("draw", it)) => Action::Draw {
            page: get(it, "page").unwrap_or_default(),
        },
        Some(("holders", it)) => Action::Holders {
            target: Target::parse(&get::<String>(it, "target").unwrap_or_default())?,
            count: get(it, "count").unwrap_or_default(),
            run: get(it, "run").unwrap_or_default(),
        },
        Some(("attack", it)) => {
            let mut target = Target::parse(&get::<String>(it, "target").unwrap_or_default())?;
            target.pid = get(it, "pid").filter(|&it| it != 0);
            target.http = get(it, "http");
            Action::Attack {
                scene: get(it, "scene").unwrap_or_default(),
                scale: get(it, "scale").unwrap_or_default(),
                target,
            }
        }
        Some(("child", it)) => Action::Child {
            parent: get(it, "parent").unwrap_or_default(),
            words: it
                .get_many("words")
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
        },
        Some(("ceiling", it)) => Action::Ceiling {
            port: get(it, "port").unwrap_or_default(),
            unix: get(it, "unix"),
            cpu: get(it, "cpu"),
            seconds: get(it, "seconds").unwrap_or_default(),
        },
        _ => unreachable!("a subcommand is required"),
    })
}

fn get<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Option<T> {
    matches.try_get_one::<T>(name).ok().flatten().cloned()
}

/// The names that an option lists.
fn list(matches: &ArgMatches, name: &str) -> Vec<String> {
    let names = matches.try_get_many(name).ok().flatten();
    names.into_iter().flatten().cloned().collect()
}

fn options(matches: &ArgMatches) -> Result<Options, String> {
    let target = get::<String>(matches, "target");
    let target = target.as_deref().map(Target::parse).transpose();
    let options = Options {
        target: target.map_err(|why| format!("--target {why}"))?,
        with: list(matches, "with"),
        seconds: get(matches, "seconds"),
        warmup: get(matches, "warmup"),
        rounds: get(matches, "rounds"),
        count: get(matches, "count"),
        scale: get(matches, "scale"),
        only: list(matches, "only"),
        dir: get(matches, "dir"),
        etcd: get(matches, "etcd"),
        leases: leases(matches),
        cpu: get(matches, "cpu"),
        server_cpu: get(matches, "server-cpu"),
        via_client: get::<String>(matches, "via").as_deref() == Some("client"),
        spin: matches.get_flag("spin"),
        json: matches.get_flag("json"),
    };
    match options.complaint() {
        Some(complaint) => Err(complaint),
        None => Ok(options),
    }
}

fn leases(matches: &ArgMatches) -> Shape {
    let usual = Shape::default();
    Shape {
        ttl_ms: get(matches, "ttl-ms").unwrap_or(usual.ttl_ms),
        hold_ms: get(matches, "hold-ms").unwrap_or(usual.hold_ms),
        jitter_ms: get(matches, "jitter-ms").unwrap_or(usual.jitter_ms),
        failrate: get(matches, "failrate").unwrap_or(usual.failrate),
    }
}

fn spec(matches: &ArgMatches) -> Result<Spec, String> {
    let named: String = get(matches, "workload").unwrap_or_default();
    let workload = Workload::ALL.into_iter().find(|it| it.name() == named);
    let count: Option<u32> = get(matches, "key-count");
    let keys = match get::<String>(matches, "keys").as_deref() {
        Some("shared") => Keys::Shared(count.unwrap_or(1)),
        Some("zipf") => Keys::Zipf(count.unwrap_or(1000)),
        _ if count.is_some() => {
            return Err("--key-count is for --keys shared or zipf; own keys are as many as the requests on their way".to_owned());
        }
        _ => Keys::Own,
    };
    let us = |name| {
        get::<u64>(matches, name)
            .unwrap_or_default()
            .saturating_mul(1_000)
    };
    let usual = Spec::default();
    Ok(Spec {
        workload: workload.unwrap_or(usual.workload),
        connections: get(matches, "connections").unwrap_or(usual.connections),
        pipeline: get(matches, "pipeline").unwrap_or(usual.pipeline),
        keys,
        slots: get(matches, "slots").unwrap_or(usual.slots),
        hold_ns: us("hold"),
        think_ns: us("think"),
        rate: get(matches, "rate"),
        idle: get(matches, "idle").unwrap_or(0),
        plain_del: matches.get_flag("del"),
        ..usual
    })
}
