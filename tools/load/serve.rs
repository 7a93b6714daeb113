//! Servers this program starts for itself, and ends: latchd, Redis, dflockd, the ceiling.
//!
//! All on loopback and on a free port; all but dflockd on a socket file too.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::clock::Clock;
use crate::target::{Address, Speaks, Target};
use crate::tied::tied;

/// Most lines a server may say before it says that it is ready.
const LINES_MAX: usize = 200;

/// How often a server that says nothing is tried, and how long after each time.
const TRIES: usize = 500;
const TRY_NS: u64 = 20_000_000;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Latchd,
    Redis,
    Dflockd,
    Ceiling,
}

impl Kind {
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
    pub(crate) fn start(kind: Kind, arguments: &[&str], clock: &Clock) -> io::Result<Self> {
        let name = format!("latch-load-{:016x}.sock", fastrand::u64(..));
        let socket = std::env::temp_dir().join(name);
        let port = match kind {
            Kind::Latchd | Kind::Ceiling => 0, // they say which one they took
            Kind::Redis | Kind::Dflockd => free_port()?,
        };
        let mut command = command(kind, port, &socket)?;
        let program = command.get_program().display().to_string();
        command.args(arguments);
        let mut command = tied(&command)?;
        command.stdin(Stdio::null());
        match kind {
            Kind::Redis => command.stdout(Stdio::piped()),
            Kind::Latchd | Kind::Ceiling => command.stderr(Stdio::piped()).stdout(Stdio::null()),
            // It writes a line for every request; nobody shall make it wait for a reader.
            Kind::Dflockd => command.stderr(Stdio::null()).stdout(Stdio::null()),
        };
        let child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let mut running = Running { child, socket };
        let port = match kind {
            Kind::Latchd | Kind::Ceiling => running.says("listen").and_then(|line| {
                let port = line
                    .rsplit(':')
                    .next()
                    .and_then(|it| it.trim().parse().ok());
                port.ok_or_else(|| io::Error::other(line))
            }),
            Kind::Redis => running.says("Ready to accept connections").map(|_| port),
            Kind::Dflockd => running.listens(port, clock).map(|()| port),
        }
        .map_err(|error| io::Error::other(format!("{program} did not start: {error}")))?;
        let speaks = match kind {
            Kind::Latchd | Kind::Dflockd => Speaks::Line,
            Kind::Redis => Speaks::Resp,
            Kind::Ceiling => Speaks::Ceiling,
        };
        let target = |address| Target {
            speaks,
            address,
            in_turns: kind == Kind::Latchd,
            pid: Some(running.child.id()),
        };
        let has_socket = kind != Kind::Dflockd;
        Ok(Self {
            tcp: target(Address::Tcp((Ipv4Addr::LOCALHOST, port).into())),
            unix: has_socket.then(|| target(Address::Unix(running.socket.clone()))),
            _running: running,
        })
    }
}

/// The process, and the file it leaves behind.
struct Running {
    child: Child,
    socket: PathBuf,
}

impl Running {
    /// Waits until it says this, and returns the line.
    fn says(&mut self, what: &str) -> io::Result<String> {
        let output: Box<dyn Read> = match (self.child.stdout.take(), self.child.stderr.take()) {
            (Some(out), _) => Box::new(out),
            (None, Some(err)) => Box::new(err),
            (None, None) => return Err(io::Error::other("a server without a voice")),
        };
        let mut said = String::new();
        for line in BufReader::new(output).lines().take(LINES_MAX) {
            let line = line?;
            if line.contains(what) {
                return Ok(line);
            }
            said.push_str(&line);
            said.push('\n');
        }
        Err(io::Error::other(said))
    }

    /// Waits until it takes a connection.
    fn listens(&mut self, port: u16, clock: &Clock) -> io::Result<()> {
        for _ in 0..TRIES {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(status.to_string()));
            }
            clock.rest(TRY_NS)?;
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

fn free_port() -> io::Result<u16> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(taken.local_addr()?.port())
}

fn command(kind: Kind, port: u16, socket: &Path) -> io::Result<Command> {
    let port = port.to_string();
    let mut command;
    match kind {
        Kind::Latchd => {
            command = Command::new(std::env::current_exe()?.with_file_name("latchd"));
            command.args(["--port", &port, "--read-timeout=3600", "--max-locks=0"]);
            command.arg("--unix-socket").arg(socket);
        }
        Kind::Ceiling => {
            command = Command::new(std::env::current_exe()?);
            command
                .args(["ceiling", "--port", &port, "--unix"])
                .arg(socket);
        }
        Kind::Redis => {
            command = Command::new("redis-server");
            command.args(["--port", &port, "--bind", "127.0.0.1"]);
            command.args(["--save", "", "--appendonly", "no", "--maxclients", "60000"]);
            command.arg("--unixsocket").arg(socket);
            command.arg("--dir").arg(std::env::temp_dir());
        }
        Kind::Dflockd => {
            command = Command::new("dflockd");
            command.args(["--host", "127.0.0.1", "--port", &port]);
            command.args(["--max-locks", "10000000", "--read-timeout", "3600"]);
        }
    }
    Ok(command)
}
