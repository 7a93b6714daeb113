//! Servers this program starts for itself, and ends: latchd, Redis, the ceiling.
//!
//! All on loopback, on a free port and a socket file, on one core if there are two.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::target::{Address, Speaks, Target};

/// Most lines a server may say before it says that it is ready.
const LINES_MAX: usize = 200;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Latchd,
    Redis,
    Ceiling,
}

/// A server of ours, ended when dropped.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    pub(crate) tcp: Target,
    pub(crate) unix: Target,
}

impl Server {
    /// Starts one, on this core if one is named.
    pub(crate) fn start(kind: Kind, cpu: Option<usize>, options: &[String]) -> io::Result<Self> {
        let name = format!("latch-load-{}-{kind:?}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = fs::remove_file(&socket); // left by one that was killed
        let mut command = match kind {
            Kind::Latchd => {
                let mut command = Command::new(std::env::current_exe()?.with_file_name("latchd"));
                command.args(["--port=0", "--read-timeout=3600", "--max-locks=0"]);
                command.arg("--unix-socket").arg(&socket);
                if let Some(cpu) = cpu {
                    command.args(["--cpu", &cpu.to_string()]);
                }
                command
            }
            Kind::Ceiling => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["ceiling", "--port=0", "--unix"]).arg(&socket);
                if let Some(cpu) = cpu {
                    command.args(["--cpu", &cpu.to_string()]);
                }
                command
            }
            Kind::Redis => redis(&socket, cpu)?,
        };
        command.args(options).stdin(Stdio::null());
        let child = match kind {
            Kind::Redis => command.stdout(Stdio::piped()).spawn(),
            _ => command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn(),
        };
        let mut child = child.map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let port = ready(kind, &mut child, &command);
        let pid = child.id();
        let target = |address, speaks| Target {
            speaks,
            address,
            in_turns: kind == Kind::Latchd,
            pid: Some(pid),
        };
        let speaks = match kind {
            Kind::Latchd => Speaks::Line,
            Kind::Redis => Speaks::Resp,
            Kind::Ceiling => Speaks::Ceiling,
        };
        let port = match port {
            Ok(port) => port,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        Ok(Self {
            child,
            tcp: target(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()), speaks),
            unix: target(Address::Unix(socket.clone()), speaks),
            socket,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
        let _ = fs::remove_file(&self.socket);
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn redis(socket: &std::path::Path, cpu: Option<usize>) -> io::Result<Command> {
    // Redis cannot say which port it took, so a free one is looked for.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port();
    let mut command = Command::new("redis-server");
    let dir = std::env::temp_dir();
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no", "--maxclients", "60000"]);
    command
        .arg("--unixsocket")
        .arg(socket)
        .arg("--dir")
        .arg(dir);
    if let Some(cpu) = cpu {
        command.args(["--server_cpulist", &cpu.to_string()]);
    }
    Ok(command)
}

/// Waits until the server says that it listens, and where.
fn ready(kind: Kind, child: &mut Child, command: &Command) -> io::Result<u16> {
    let output: Box<dyn Read> = match (child.stdout.take(), child.stderr.take()) {
        (Some(out), _) => Box::new(out),
        (None, Some(err)) => Box::new(err),
        (None, None) => return Err(io::Error::other("a server without a voice")),
    };
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines().take(LINES_MAX) {
        let line = line?;
        let found = match kind {
            Kind::Redis if line.contains("Ready to accept connections") => {
                let mut arguments = command.get_args().skip_while(|it| *it != "--port");
                arguments.nth(1).and_then(|it| it.to_str()?.parse().ok())
            }
            Kind::Redis => None,
            Kind::Latchd | Kind::Ceiling => line
                .trim()
                .rsplit(':')
                .next()
                .and_then(|it| it.parse().ok()),
        };
        if let Some(port) = found {
            return Ok(port);
        }
        lines.push(line);
    }
    let program = command.get_program().display();
    let said = lines.join("\n");
    Err(io::Error::other(format!("{program} did not start: {said}")))
}
