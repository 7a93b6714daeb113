//! The servers that are compared: finds and starts latchd, Redis, dflockd and the ceiling.
//!
//! All listen on loopback and on a free port; all but dflockd on a socket file too. `process` waits
//! for them and ends them, `child` makes sure that none outlives this program, `target` is the
//! address of a server and connects to it, `ceiling` is the server that is part of this program.

pub(crate) mod ceiling;
pub(crate) mod child;
mod process;
pub(crate) mod target;
pub(crate) mod tls;

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use crate::clock::Clock;
pub(crate) use crate::servers::process::LogSize;
use crate::servers::process::{ServerProcess, nameless_file};
use crate::servers::target::{Address, Protocol, Target};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Latchd,
    Redis,
    Dflockd,
    Ceiling,
}

impl ServerKind {
    /// The server with this name on the command line.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "redis" | "redis-del" => Some(Self::Redis),
            "dflockd" => Some(Self::Dflockd),
            "ceiling" => Some(Self::Ceiling),
            _ => None,
        }
    }

    /// Whether it is installed.
    pub(crate) fn is_here(self) -> bool {
        let program = match self {
            Self::Latchd | Self::Ceiling => return true,
            Self::Redis => "redis-server",
            Self::Dflockd => "dflockd",
        };
        let mut command = Command::new(program);
        command.arg("--help").stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        // Shells, and launchers such as pyenv's, exit with 127 if there is no such program.
        status.is_ok_and(|it| it.code() != Some(127))
    }
}

/// What makes latchd speak HTTP too, and what it says then before the address.
pub(crate) const HTTP: [&str; 2] = ["--http-port", "0"];
const SERVES_HTTP: &str = "serves HTTP on ";

/// A server that was started here; it ends when this is dropped.
pub(crate) struct Server {
    process: ServerProcess,
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
        let said = nameless_file(&std::env::temp_dir().join(format!("{name}.log")))?;
        let port = match kind {
            ServerKind::Latchd | ServerKind::Ceiling => 0, // they print the port they took
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
            // It logs every request, which shall cost it as little as possible.
            ServerKind::Dflockd => command.stderr(Stdio::null()).stdout(Stdio::null()),
        };
        let child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let mut process = ServerProcess {
            program,
            child,
            socket,
            said,
            clock: clock.clone(),
            broke: broke.clone(),
        };
        let port = match kind {
            ServerKind::Latchd | ServerKind::Ceiling => process.says("listen").and_then(|line| {
                // `… listens on 127.0.0.1:6388`, and perhaps how.
                let port = line.rsplit(':').next();
                let port = port.and_then(|it| it.split_whitespace().next()?.parse().ok());
                port.ok_or_else(|| io::Error::other(line))
            }),
            ServerKind::Redis => process.says("Ready to accept connections").map(|_| port),
            ServerKind::Dflockd => process.listens(port).map(|()| port),
        }
        .map_err(|error| io::Error::other(format!("{} {error}", process.program)))?;
        let http = match arguments.contains(&HTTP[0]) {
            true => Some(http_address(&process.says(SERVES_HTTP)?)?),
            false => None,
        };
        let protocol = match kind {
            ServerKind::Latchd | ServerKind::Dflockd => Protocol::Line,
            ServerKind::Redis => Protocol::Resp,
            ServerKind::Ceiling => Protocol::Ceiling,
        };
        let target = |address| Target {
            protocol,
            address,
            members: None,
            http,
            in_turns: kind == ServerKind::Latchd,
            is_encrypted: arguments.contains(&tls::CERT_OPTION),
            guarded: false,
            pid: Some(process.child.id()),
        };
        let has_socket = kind != ServerKind::Dflockd;
        Ok(Self {
            tcp: target(Address::Tcp((Ipv4Addr::LOCALHOST, port).into())),
            unix: has_socket.then(|| Target {
                is_encrypted: false,
                ..target(Address::Unix(process.socket.clone()))
            }),
            process,
        })
    }

    /// How much it has logged. Its log is its output, which goes to a file.
    pub(crate) fn logged(&self) -> io::Result<LogSize> {
        self.process.logged()
    }
}

/// The latchd beside this program. Where cargo builds this program as an example, that is one
/// folder up.
fn latchd() -> io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("latchd");
    let above = beside
        .parent()
        .and_then(Path::parent)
        .map(|it| it.join("latchd"));
    Ok(above
        .filter(|it| !beside.exists() && it.exists())
        .unwrap_or(beside))
}

/// Whether the latchd beside this program has that option.
pub(crate) fn latchd_knows(option: &str) -> io::Result<bool> {
    let output = Command::new(latchd()?).arg("--help").output()?;
    let help = String::from_utf8_lossy(&output.stdout);
    Ok(help.split_whitespace().any(|it| it == option))
}

/// The address in `latchd 0.1.0 serves HTTP on 127.0.0.1:6389: a browser ...`.
fn http_address(line: &str) -> io::Result<SocketAddr> {
    let address = line.split(SERVES_HTTP).nth(1);
    let address = address.and_then(|it| it.split(": ").next()?.trim().parse().ok());
    address.ok_or_else(|| io::Error::other(line.to_owned()))
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
            command = Command::new(latchd()?);
            command.args(["--port", &port, "--read-timeout=3600", "--max-locks=0"]);
            command.arg("--unix-socket").arg(socket);
            command.env("LATCHD_HTTP_PORT", "off"); // an older one knows no such option
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
