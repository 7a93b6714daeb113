//! What durability costs: latchd in memory, with a data directory, and Redis that syncs every write,
//! in turn on one disk.
//!
//! A round is every scene once. Beside the servers the disk itself is measured, because most of what
//! a durable answer takes is its.

mod alone;
mod folder;
mod restart;
mod sync;
mod throughput;

use std::io;

use crate::durable::folder::Folder;
use crate::options::Options;
use crate::output::{eprint, print};
use crate::report::figures::Figures;
use crate::report::tables::measured_on;
use crate::servers::{Server, ServerKind};
use crate::session::Session;

/// Rounds, unless the command line says otherwise.
const ROUNDS: usize = 5;

/// One round of a scene.
type Scene = fn(&Session, &Folder, &mut Figures) -> io::Result<()>;

const SCENES: [Scene; 3] = [throughput::run, alone::run, restart::run];

/// Runs every scene; returns whether every answer was right.
pub(crate) fn run(options: Options) -> io::Result<bool> {
    if options.target.is_some() {
        let what = "the plan durable starts its servers itself: no --target";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let folder = Folder::make(options.dir.as_deref())?;
    let on = folder.file_system();
    if on.is_some_and(|it| it == "tmpfs" || it == "ramfs") {
        let path = folder.path().display();
        eprint(&format!(
            "latch-load: warning: {path} is in memory, so nothing here is about a disk; name a \
             directory with --dir"
        ));
    }
    let session = Session::open(options)?;
    let mut figures = Figures::default();
    let rounds = session.options.rounds(ROUNDS);
    for round in 1..=rounds {
        let began = session.clock.now_ns();
        for scene in SCENES {
            scene(&session, &folder, &mut figures)?;
        }
        let seconds = (session.clock.now_ns() - began) as f64 / 1e9;
        eprint(&format!(
            "latch-load: round {round} of {rounds}: {seconds:.1} s"
        ));
    }
    if session.options.json {
        print(&figures.json())?;
    } else {
        let measured_on = measured_on();
        let on = folder
            .file_system()
            .map_or_else(String::new, |it| format!(", {it}"));
        let measured_on = measured_on.trim_end().trim_end_matches(':');
        let (table, verdict) = (figures.markdown(), figures.verdict());
        print(&format!("{measured_on}{on}:\n\n{table}\n{verdict}"))?;
    }
    Ok(figures.complain())
}

/// The servers that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// latchd without a data directory.
    InMemory,
    /// latchd that answers when it is on the disk.
    Sync,
    /// latchd that answers before.
    Async,
    /// Redis that answers when it is on the disk.
    Redis,
}

impl Kept {
    const ALL: [Self; 4] = [Self::InMemory, Self::Sync, Self::Async, Self::Redis];

    const fn name(self) -> &'static str {
        match self {
            Self::InMemory => "in memory",
            Self::Sync => "durable",
            Self::Async => "async",
            Self::Redis => "redis",
        }
    }

    /// Starts one with a directory of its own; `None` if it is not installed.
    fn start(self, session: &Session, folder: &Folder) -> io::Result<Option<Server>> {
        if self == Self::Redis && !ServerKind::Redis.is_here() {
            return Ok(None);
        }
        let dir = folder.new_place(self.name())?;
        let dir = dir.to_string_lossy();
        let dir = dir.as_ref();
        let (kind, arguments) = match self {
            Self::InMemory => (ServerKind::Latchd, &[][..]),
            Self::Sync => (
                ServerKind::Latchd,
                &["--data-dir", dir, "--durability", "sync"][..],
            ),
            Self::Async => (
                ServerKind::Latchd,
                &["--data-dir", dir, "--durability", "async"][..],
            ),
            Self::Redis => (
                ServerKind::Redis,
                &[
                    "--dir",
                    dir,
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                ][..],
            ),
        };
        session.start(kind, arguments).map(Some)
    }
}
