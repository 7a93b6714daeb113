//! What all commands share: the server to load, the core to load it from, the line that shows how
//! far it is.

use std::io::{self, IsTerminal};

use latchd::daemon::pin::pin_to_cpu;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::Clock;
use crate::drive::{self, Beside};
use crate::outcome::Outcome;
use crate::report::grouped;
use crate::serve::{Kind, Server};
use crate::spec::Spec;
use crate::target::Target;

/// What the command line says besides the work itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// A server that runs already; none: start latchd.
    pub(crate) target: Option<String>,
    pub(crate) seconds: Option<f64>,
    pub(crate) warmup: Option<f64>,
    pub(crate) rounds: Option<usize>,
    /// How many locks, connections or leases a plan uses.
    pub(crate) count: Option<usize>,
    pub(crate) cpu: Option<usize>,
    pub(crate) server_cpu: Option<usize>,
    pub(crate) spin: bool,
    pub(crate) json: bool,
}

/// Longest that one stage of one run may take.
const SECONDS_MAX: f64 = 86_400.0;

impl Options {
    /// What the command line says about time, put into a run.
    pub(crate) fn apply(&self, spec: &mut Spec) {
        let ns = |seconds: f64| (seconds.clamp(0.0, SECONDS_MAX) * 1e9) as u64;
        spec.measure_ns = self.seconds.map_or(spec.measure_ns, ns);
        spec.warmup_ns = self.warmup.map_or(spec.warmup_ns, ns);
    }
}

/// A server, a clock, and a place to say things.
pub(crate) struct Session {
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) target: Target,
    /// Ours, if it is.
    pub(crate) server: Option<Server>,
    /// Servers to compare with; here so that they start before this thread is bound to its core,
    /// because what starts later is bound to the same.
    pub(crate) others: Vec<(Kind, Server)>,
}

impl Session {
    pub(crate) fn open(options: Options, others: &[Kind]) -> io::Result<Self> {
        raise_descriptors();
        let (server_cpu, load_cpu) = match cores()[..] {
            [first, second, ..] => (Some(first), Some(second)),
            _ => (None, None),
        };
        let server_cpu = options.server_cpu.or(server_cpu);
        let load_cpu = options.cpu.or(load_cpu);
        let (target, server) = match &options.target {
            Some(text) => (Target::parse(text).map_err(io::Error::other)?, None),
            None => {
                let spin: &[String] = if options.spin {
                    &["--spin".to_owned()]
                } else {
                    &[]
                };
                let server = Server::start(Kind::Latchd, server_cpu, spin)?;
                (server.tcp.clone(), Some(server))
            }
        };
        let mut started = Vec::new();
        for &kind in others {
            started.push((kind, Server::start(kind, server_cpu, &[])?));
        }
        if let Some(cpu) = load_cpu {
            pin_to_cpu(cpu)?;
        }
        Ok(Self {
            clock: Clock::start(),
            options,
            target,
            server,
            others: started,
        })
    }

    /// One run against this session's server.
    pub(crate) fn run(&self, label: &str, spec: &Spec) -> io::Result<Outcome> {
        self.run_at(label, spec, &self.target, None)
    }

    /// One run against that server; `begin` is done when measuring begins.
    pub(crate) fn run_at<'a>(
        &'a self,
        label: &'a str,
        spec: &Spec,
        target: &Target,
        begin: Option<Box<dyn FnOnce() + 'a>>,
    ) -> io::Result<Outcome> {
        if let Some(complaint) = spec.complaint() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, complaint));
        }
        let progress = |answers: u64, over: f64| {
            let answers = grouped(answers as f64);
            self.say(&format!(
                "{label}: {:3.0} %, {answers} answers",
                over * 100.0
            ));
        };
        let beside = Beside {
            progress: &progress,
            begin,
        };
        let outcome = drive::run(spec, target, &self.clock, beside);
        self.say("");
        outcome
    }

    /// The progress line; nothing where nobody watches.
    pub(crate) fn say(&self, text: &str) {
        if io::stderr().is_terminal() {
            eprint!("\r{text:<78.78}\r");
        }
    }
}

/// The cores this process may use; none where that cannot be known.
#[cfg(target_os = "linux")]
fn cores() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn cores() -> Vec<usize> {
    Vec::new()
}

/// As many connections as we may have.
pub(crate) fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // Where it is refused, connecting will say so.
    let _ = setrlimit(Resource::Nofile, all);
}
