//! One vocabulary for all transcripts: how they are written, held, and judged.
//!
//! `transcript` reads `tests/scripts/*.txt` (the format is explained in the README there),
//! `pattern` compares what was said with what was written, `talk` holds one conversation over a
//! [`World`]. A world is the server with pipes (`script.rs`) or with sockets (`conformance.rs`);
//! the transcripts cannot tell which.

mod pattern;
mod talk;
pub(crate) mod transcript;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use latchd::base::Millis;
use latchd::config::{self, Config, Outcome};
use latchd::daemon;
use latchd::engine::{Engine, Origin};
use latchd::server::{Server, Settings, Transport};

/// A server, its clients and its clock.
pub(crate) trait World {
    /// A new connection, by number from 0. One that is refused reads its end at once.
    fn connect(&mut self) -> usize;
    /// Puts bytes on their way.
    fn send(&mut self, client: usize, bytes: &[u8]);
    /// The client goes, or stops sending.
    fn end(&mut self, client: usize, how: Ending);
    /// Moves the clock and nothing else.
    fn pass(&mut self, span: Millis);
    /// Lets the server run: everything sent so far has arrived.
    fn turn(&mut self);
    /// The next thing the client reads. Waits for it only if it is `due`.
    fn hear(&mut self, client: usize, due: bool) -> Option<Heard>;
    /// Tells the server to stop, as a signal would.
    fn shut_down(&mut self);
    /// Whether the server has come to its end.
    fn has_stopped(&mut self) -> bool;
    /// The conversation is over and everyone may go; the place for last checks.
    fn finish(self);
}

/// How a client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// In peace, in both directions.
    Close,
    /// Sends no more, still reads.
    HalfClose,
    /// Breaks the connection.
    Reset,
}

/// What a client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A line, without its end.
    Line(String),
    /// The server has closed.
    End,
}

/// The options of a conversation, as the daemon would read them.
pub(crate) fn settings(flags: &[String]) -> Config {
    let args = std::iter::once("latchd".into()).chain(flags.iter().map(Into::into));
    match config::load(args, &|_| None) {
        Ok(Outcome::Run(config)) => config,
        other => panic!("{flags:?}: {other:?}"),
    }
}

/// The server that `config` describes. Fences count from 1, and salts follow from a fixed key:
/// transcripts are to read the same every time.
pub(crate) fn server<T: Transport>(config: &Config) -> Server<T> {
    let rules = daemon::rules(config);
    // The runner's own connection does not count.
    let connections_max = config.max_connections.map_or(0, |most| most + 1);
    let settings = Settings {
        connections_max,
        ..daemon::settings(config, 1)
    };
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    Server::new(settings, Engine::new(rules, origin))
}

/// Holds every conversation of every transcript, each in a world of its own, and fails with all
/// that went wrong. With `rewrite`, what was said replaces what was written, for review as a diff.
pub(crate) fn hold_all<W: World>(mut world: impl FnMut(&Config) -> W, rewrite: bool) {
    let (mut conversations, mut wrong) = (0, String::new());
    for path in transcripts() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let file = transcript::parse(&text).unwrap_or_else(|why| panic!("{name}:{why}"));
        // From the end, so that a rewritten block moves nothing that is still to be rewritten.
        for conversation in file.iter().rev() {
            conversations += 1;
            let config = settings(&conversation.flags);
            let world = world(&config);
            match talk::hold(world, &config, &name, conversation, rewrite) {
                Ok(edits) => {
                    for edit in edits.into_iter().rev() {
                        lines.splice(edit.lines, edit.text);
                    }
                }
                Err(why) => writeln!(wrong, "\n{name}:{why}").unwrap(),
            }
        }
        if rewrite {
            fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
    }
    assert!(conversations > 0, "no transcripts found");
    assert!(wrong.is_empty(), "{wrong}");
}

fn transcripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "txt"))
        .collect();
    paths.sort();
    paths
}
