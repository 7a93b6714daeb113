//! What all commands share: the cores, the clock, the progress line, and the server to load.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;

use crate::clock::Clock;
use crate::machine::{cores, raise_descriptors, stay_on};
use crate::options::Options;
use crate::output::eprint;
use crate::report::format::grouped;
use crate::run::event_loop::{self, Hooks};
use crate::run::outcome::Outcome;
use crate::run::spec::Spec;
use crate::run::via_client;
use crate::servers::target::Target;
use crate::servers::{Server, ServerKind};

/// The server to load: a latchd started here, which ends when this is dropped, or the one that
/// `--target` names.
pub(crate) struct Subject {
    pub(crate) target: Target,
    pub(crate) server: Option<Server>,
}

/// A clock, two cores, and where to report progress.
pub(crate) struct Session {
    pub(crate) clock: Rc<Clock>,
    pub(crate) options: Options,
    /// The server process whose run broke: its last output may say why.
    broke: Rc<Cell<Option<u32>>>,
    server_cpu: Option<usize>,
    load_cpu: Option<usize>,
}

impl Session {
    pub(crate) fn open(mut options: Options) -> io::Result<Self> {
        raise_descriptors();
        let cores = cores();
        for (name, core) in [("cpu", options.cpu), ("server-cpu", options.server_cpu)] {
            if let Some(core) = core.filter(|it| !cores.contains(it)) {
                let what =
                    format!("--{name} {core}: no such core here; this process may use {cores:?}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        let (server_cpu, load_cpu) = match cores[..] {
            [first, second, ..] => (Some(first), Some(second)),
            _ => (None, None),
        };
        // A server that is not installed is left out of the comparison.
        options.with.retain(|name| {
            let missing = ServerKind::named(name).is_some_and(|kind| !kind.is_here());
            if missing {
                let why = "because it is not installed here";
                eprint(&format!("latch-load: {name} is left out, {why}"));
            }
            !missing
        });
        let session = Self {
            clock: Rc::new(Clock::start()),
            broke: Rc::new(Cell::new(None)),
            server_cpu: options.server_cpu.or(server_cpu),
            load_cpu: options.cpu.or(load_cpu),
            options,
        };
        stay_on(session.load_cpu)?;
        Ok(session)
    }

    /// Starts a server. A process inherits the core of the thread that starts it, so this thread
    /// moves to the servers' core for that moment.
    pub(crate) fn start(&self, kind: ServerKind, arguments: &[&str]) -> io::Result<Server> {
        self.on_servers_core(|| Server::start(kind, arguments, &self.clock, &self.broke))
    }

    /// Does something on the servers' core.
    pub(crate) fn on_servers_core<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        stay_on(self.server_cpu)?;
        let result = act();
        stay_on(self.load_cpu)?;
        result
    }

    /// The server to load: a new latchd, unless `--target` names a server.
    pub(crate) fn latchd(&self, arguments: &[&str]) -> io::Result<Subject> {
        if let Some(target) = &self.options.target {
            return Ok(Subject {
                target: target.clone(),
                server: None,
            });
        }
        let mut arguments = arguments.to_vec();
        if self.options.spin && !arguments.contains(&"--spin") {
            arguments.push("--spin");
        }
        let server = self.start(ServerKind::Latchd, &arguments)?;
        Ok(Subject {
            target: server.tcp.clone(),
            server: Some(server),
        })
    }

    /// A new Redis, if the command line asks for a comparison with it.
    pub(crate) fn redis(&self) -> io::Result<Option<Server>> {
        let wanted = self.options.with.iter().any(|name| name == "redis");
        wanted
            .then(|| self.start(ServerKind::Redis, &[]))
            .transpose()
    }

    /// How many of something a scenario uses: `usual`, but never more than `--count`.
    pub(crate) fn count(&self, usual: usize) -> usize {
        usual.min(self.options.count.unwrap_or(usual))
    }

    /// A run of one second, or as long as the command line says.
    pub(crate) fn short(&self, spec: Spec) -> Spec {
        let mut spec = Spec {
            measure_ns: 1_000_000_000,
            ..spec
        };
        self.options.apply(&mut spec);
        spec
    }

    /// One run against that server.
    pub(crate) fn run(&self, label: &str, spec: &Spec, target: &Target) -> io::Result<Outcome> {
        self.run_and(label, spec, target, None)
    }

    /// The same; calls `begin` when measuring begins.
    pub(crate) fn run_and<'a>(
        &'a self,
        label: &'a str,
        spec: &Spec,
        target: &Target,
        begin: Option<Box<dyn FnOnce() + 'a>>,
    ) -> io::Result<Outcome> {
        if let Some(complaint) = spec.complaint() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, complaint));
        }
        if target.members.is_some() && !spec.via_client {
            let complaint =
                "several members are for the client that programs use: say --via client";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, complaint));
        }
        let progress = |answers: u64, over: Option<f64>| {
            let answers = grouped(answers as f64);
            match over {
                None => self.say(&format!("{label}: warming up")),
                Some(over) => {
                    let percent = over * 100.0;
                    self.say(&format!("{label}: {percent:3.0} %, {answers} answers"));
                }
            }
        };
        let hooks = Hooks {
            progress: &progress,
            begin,
        };
        let outcome = match spec.via_client {
            true => via_client::run(spec, target, &self.clock, hooks),
            false => event_loop::run(spec, target, &self.clock, hooks),
        };
        if outcome.as_ref().map_or(true, |it| it.broken) {
            self.broke.set(target.pid);
        }
        self.say("");
        outcome
    }

    /// Shows the progress line, if standard error is a terminal.
    pub(crate) fn say(&self, text: &str) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r{text:<78.78}\r");
        }
    }
}
