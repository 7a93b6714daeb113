//! The options that all commands share, and which values of them make no sense.

use crate::run::spec::Spec;
use crate::servers::ServerKind;
use crate::servers::target::Target;

/// The options; each that is `None` has its default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// A server that runs already; `None` starts latchd.
    pub(crate) target: Option<Target>,
    /// The servers to compare with, by name.
    pub(crate) with: Vec<String>,
    pub(crate) seconds: Option<f64>,
    pub(crate) warmup: Option<f64>,
    pub(crate) rounds: Option<usize>,
    /// The most locks, connections or leases that a scenario uses.
    pub(crate) count: Option<usize>,
    pub(crate) cpu: Option<usize>,
    pub(crate) server_cpu: Option<usize>,
    pub(crate) spin: bool,
    pub(crate) json: bool,
}

/// The longest time that one stage of a run may take.
const SECONDS_MAX: f64 = 86_400.0;

impl Options {
    /// What makes no sense about them, if anything.
    pub(crate) fn complaint(&self) -> Option<String> {
        for (name, seconds, least) in [
            ("seconds", self.seconds, f64::MIN_POSITIVE),
            ("warmup", self.warmup, 0.0),
        ] {
            if let Some(it) = seconds.filter(|it| !(least..=SECONDS_MAX).contains(it)) {
                let from = if least > 0.0 { "above 0" } else { "from 0" };
                return Some(format!("--{name} {it}: say {from} up to {SECONDS_MAX}"));
            }
        }
        for (name, number) in [("rounds", self.rounds), ("count", self.count)] {
            if number == Some(0) {
                return Some(format!("--{name} 0: say 1 or more"));
            }
        }
        let known = |name: &str| {
            ServerKind::named(name).map_or_else(|| Target::parse(name).err(), |_| None)
        };
        let unknown = self.with.iter().find_map(|it| known(it));
        unknown.map(|why| {
            format!(
                "--with {why}; or say redis, redis-del, dflockd or ceiling, which are started here"
            )
        })
    }

    /// Applies `--seconds` and `--warmup` to a run.
    pub(crate) fn apply(&self, spec: &mut Spec) {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        spec.measure_ns = self.seconds.map_or(spec.measure_ns, ns);
        spec.warmup_ns = self.warmup.map_or(spec.warmup_ns, ns);
    }

    /// The number of rounds; `usual`, unless the command line says otherwise.
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(usual)
    }
}
