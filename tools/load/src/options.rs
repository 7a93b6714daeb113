//! The options that all commands share, and which values of them make no sense.

use std::path::PathBuf;

use crate::hostile::{SCENES, Scene};
use crate::run::spec::Spec;
use crate::scenarios::leases::Shape;
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
    /// How large the attacks of the plan `hostile` are.
    pub(crate) scale: Option<f64>,
    /// The scenes of that plan that are run; all, if none is named.
    pub(crate) only: Vec<String>,
    /// Where the plan `durable` has its files; the system's directory for such things if none is named.
    pub(crate) dir: Option<PathBuf>,
    /// Where the etcd of the plan `cluster` is.
    pub(crate) etcd: Option<String>,
    /// How leases are held in the plan `leases`.
    pub(crate) leases: Shape,
    pub(crate) cpu: Option<usize>,
    pub(crate) server_cpu: Option<usize>,
    /// Load with the client that programs use.
    pub(crate) via_client: bool,
    pub(crate) spin: bool,
    pub(crate) json: bool,
}

/// How much smaller and larger attacks can be made.
const SCALE_MIN: f64 = 0.0001;
const SCALE_MAX: f64 = 10.0;

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
        if let Some(scale) = self
            .scale
            .filter(|it| !(SCALE_MIN..=SCALE_MAX).contains(it))
        {
            return Some(format!(
                "--scale {scale}: say from {SCALE_MIN} up to {SCALE_MAX}"
            ));
        }
        if let Some(name) = self.only.iter().find(|it| Scene::find(it).is_none()) {
            return Some(format!(
                "--only {name}: there is no such scene; say {}",
                SCENES.map(|it| it.name).join(", ")
            ));
        }
        if let Some(complaint) = self.leases.complaint() {
            return Some(complaint);
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

    /// Applies `--seconds`, `--warmup` and `--via` to a run.
    pub(crate) fn apply(&self, spec: &mut Spec) {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        spec.measure_ns = self.seconds.map_or(spec.measure_ns, ns);
        spec.warmup_ns = self.warmup.map_or(spec.warmup_ns, ns);
        spec.via_client = self.via_client;
    }

    /// How large attacks are: as they are described, unless the command line says otherwise.
    pub(crate) fn scale(&self) -> f64 {
        self.scale.unwrap_or(1.0)
    }

    /// The number of rounds; `usual`, unless the command line says otherwise.
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(usual)
    }
}
