//! Servers this program starts for itself, and ends: latchd, Redis, dflockd, the ceiling.
//!
//! All on loopback and on a free port; all but dflockd on a socket file too. What they say goes into
//! a file without a name, and is shown if one ends by itself or a run breaks.

pub(crate) mod ceiling;
pub(crate) mod child;
pub(crate) mod target;

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use crate::clock::Clock;
use crate::output::eprint;
use crate::servers::target::{Address, Protocol, Target};

/// How often a server is asked whether it is ready, and how long after each time.
const TRIES: usize = 5_000;
const TRY_NS: u64 = 2_000_000;

/// How often, at most, the end of a server is waited for after a run broke.
const END_TRIES: usize = 100;

/// How much of what a server said is looked at, from the beginning and from the end.
const SAID_BYTES_MAX: usize = 64 * 1024;

/// How many of its last lines are shown.
const LAST_LINES: usize = 10;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Latchd,
    Redis,
    Dflockd,
    Ceiling,
}

impl ServerKind {
    /// As the command line says it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "redis" | "redis-del" => Some(Self::Redis),
            "dflockd" => Some(Self::Dflockd),
            "ceiling" => Some(Self::Ceiling),
            _ => None,
        }
    }

    /// Whether it can be started at all.
    pub(crate) fn is_here(self) -> bool {
        let program = match self {
            Self::Latchd | Self::Ceiling => return true,
            Self::Redis => "redis-server",
            Self::Dflockd => "dflockd",
        };
        let mut command = Command::new(program);
        command.arg("--help").stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        // A shell's word for a program that is not there, or not for this version, is 127.
        status.is_ok_and(|it| it.code() != Some(127))
    }
}

/// A server of ours, ended when dropped.
pub(crate) struct Server {
    _running: Running,
    pub(crate) tcp: Target,
    /// The socket file, where it has one.
    pub(crate) unix: Option<Target>,
}

impl Server {
    /// Starts one.
    pub(crate) fn start(
        kind: ServerKind,
        arguments: &[&str],
        clock: &Rc<Clock>,
        broke: &Rc<Cell<Option<u32>>>,
    ) -> io::Result<Self> {
        let name = format!("latch-load-{:016x}", fastrand::u64(..));
        let socket = std::env::temp_dir().join(format!("{name}.sock"));
        let said = nameless(&std::env::temp_dir().join(format!("{name}.log")))?;
        let port = match kind {
            ServerKind::Latchd | ServerKind::Ceiling => 0, // they say which one they took
            ServerKind::Redis | ServerKind::Dflockd => free_port()?,
        };
        let mut command = command(kind, port, &socket)?;
        let program = command.get_program().display().to_string();
        command.args(arguments);
        let mut command = child::command(&command)?;
        command.stdin(Stdio::null());
        match kind {
            ServerKind::Latchd | ServerKind::Redis | ServerKind::Ceiling => {
                command.stdout(said.try_clone()?).stderr(said.try_clone()?)
            }
            // It writes a line for every request, which shall cost it as little as possible.
            ServerKind::Dflockd => command.stderr(Stdio::null()).stdout(Stdio::null()),
        };
        let child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let mut running = Running {
            program,
            child,
            socket,
            said,
            clock: clock.clone(),
            broke: broke.clone(),
        };
        let port = match kind {
            ServerKind::Latchd | ServerKind::Ceiling => running.says("listen").and_then(|line| {
                let port = line
                    .rsplit(':')
                    .next()
                    .and_then(|it| it.trim().parse().ok());
                port.ok_or_else(|| io::Error::other(line))
            }),
            ServerKind::Redis => running.says("Ready to accept connections").map(|_| port),
            ServerKind::Dflockd => running.listens(port).map(|()| port),
        }
        .map_err(|error| io::Error::other(format!("{} {error}", running.program)))?;
        let protocol = match kind {
            ServerKind::Latchd | ServerKind::Dflockd => Protocol::Line,
            ServerKind::Redis => Protocol::Resp,
            ServerKind::Ceiling => Protocol::Ceiling,
        };
        let target = |address| Target {
            protocol,
            address,
            in_turns: kind == ServerKind::Latchd,
            pid: Some(running.child.id()),
        };
        let has_socket = kind != ServerKind::Dflockd;
        Ok(Self {
            tcp: target(Address::Tcp((Ipv4Addr::LOCALHOST, port).into())),
            unix: has_socket.then(|| target(Address::Unix(running.socket.clone()))),
            _running: running,
        })
    }
}

/// The process, what it says, and the file it leaves behind.
struct Running {
    program: String,
    child: Child,
    socket: PathBuf,
    said: File,
    clock: Rc<Clock>,
    /// Whose run went wrong, perhaps because it ended.
    broke: Rc<Cell<Option<u32>>>,
}

impl Running {
    /// Waits until it says this, and returns the line.
    fn says(&mut self, what: &str) -> io::Result<String> {
        self.until(|it| {
            let said = it.said_from(0)?;
            // A line without its end may not be all of it.
            let mut lines = said.split_inclusive('\n').filter(|it| it.ends_with('\n'));
            Ok(lines.find(|it| it.contains(what)).map(str::to_owned))
        })
    }

    /// Waits until it takes a connection.
    fn listens(&mut self, port: u16) -> io::Result<()> {
        self.until(|_| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()))?;
        Ok(())
    }

    /// Asks again and again, as long as it runs.
    fn until<T>(&mut self, ask: impl Fn(&Self) -> io::Result<Option<T>>) -> io::Result<T> {
        for _ in 0..TRIES {
            // Before it is asked, so that its last words are heard.
            let ended = self.child.try_wait()?;
            if let Some(found) = ask(self)? {
                return Ok(found);
            }
            if ended.is_some() {
                return Err(io::Error::other("did not start"));
            }
            self.clock.rest(TRY_NS)?;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "is not ready"))
    }

    /// What it said from there on.
    fn said_from(&self, offset: u64) -> io::Result<String> {
        let mut bytes = vec![0; SAID_BYTES_MAX];
        let length = self.said.read_at(&mut bytes, offset)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// How it ended, if it did, and what it said last.
    fn last_words(&mut self) -> io::Result<String> {
        let mut status = self.child.try_wait()?;
        for _ in 0..END_TRIES {
            // Its connections are closed before it has ended.
            if status.is_some() {
                break;
            }
            self.clock.rest(TRY_NS)?;
            status = self.child.try_wait()?;
        }
        let mut text = match status {
            Some(status) => format!("{} ended by itself: {status}", self.program),
            None => format!("{} still runs", self.program),
        };
        let length = self.said.metadata()?.len();
        let said = self.said_from(length.saturating_sub(SAID_BYTES_MAX as u64))?;
        let lines: Vec<&str> = said.lines().collect();
        if lines.is_empty() {
            text.push_str("; it said nothing");
        } else {
            text.push_str("; it said last:");
        }
        for line in lines.iter().skip(lines.len().saturating_sub(LAST_LINES)) {
            text.push_str("\n  ");
            text.push_str(line);
        }
        Ok(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.child.try_wait().is_ok_and(|it| it.is_some());
        if (ended || self.broke.get() == Some(self.child.id()))
            && let Ok(words) = self.last_words()
        {
            eprint(&format!("latch-load: {words}"));
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// A file that is gone when nobody has it open any more. Written at its end, whoever writes.
fn nameless(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .append(true)
        .create_new(true)
        .open(path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn free_port() -> io::Result<u16> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(taken.local_addr()?.port())
}

fn command(kind: ServerKind, port: u16, socket: &Path) -> io::Result<Command> {
    let port = port.to_string();
    let mut command;
    match kind {
        ServerKind::Latchd => {
            command = Command::new(std::env::current_exe()?.with_file_name("latchd"));
            command.args(["--port", &port, "--read-timeout=3600", "--max-locks=0"]);
            command.arg("--unix-socket").arg(socket);
        }
        ServerKind::Ceiling => {
            command = Command::new(std::env::current_exe()?);
            command
                .args(["ceiling", "--port", &port, "--unix"])
                .arg(socket);
        }
        ServerKind::Redis => {
            command = Command::new("redis-server");
            command.args(["--port", &port, "--bind", "127.0.0.1"]);
            command.args(["--save", "", "--appendonly", "no", "--maxclients", "60000"]);
            command.arg("--unixsocket").arg(socket);
            command.arg("--dir").arg(std::env::temp_dir());
        }
        ServerKind::Dflockd => {
            command = Command::new("dflockd");
            command.args(["--host", "127.0.0.1", "--port", &port]);
            command.args(["--max-locks", "10000000", "--read-timeout", "3600"]);
        }
    }
    Ok(command)
}
