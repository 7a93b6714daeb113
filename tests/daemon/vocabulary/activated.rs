//! latchd with sockets that somebody else has opened, as systemd hands them over.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use super::latchd;

/// latchd with these two sockets as a service manager hands them over: descriptors 3 and 4, and the
/// number of the process, which a shell knows before it becomes latchd.
pub(crate) fn with_sockets(
    first: OwnedFd,
    second: OwnedFd,
    names: Option<&str>,
    options: &[&str],
) -> Command {
    let program = latchd().get_program().to_owned();
    let mut command = Command::new("sh");
    let script = "exec 3<&0 4<&1 0</dev/null 1>/dev/null; LISTEN_PID=$$ exec \"$0\" \"$@\"";
    command.args(["-c", script]).arg(program).args(options);
    command.env_clear().env("LISTEN_FDS", "2");
    if let Some(names) = names {
        command.env("LISTEN_FDNAMES", names);
    }
    command
        .stdin(Stdio::from(first))
        .stdout(Stdio::from(second));
    command
}

/// A daemon with sockets that were handed over, killed when dropped.
pub(crate) struct Activated {
    pub(crate) child: Child,
    /// What it has said until it served.
    pub(crate) log: Vec<String>,
}

impl Activated {
    /// Runs a command whose descriptors are set, until it serves.
    #[track_caller]
    pub(crate) fn serve(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let log = Vec::new();
        let mut daemon = Self { child, log };
        for line in BufReader::new(stderr).lines() {
            let line = line.unwrap();
            let serves = line.contains("clients may make this process use");
            daemon.log.push(line);
            if serves {
                return daemon;
            }
        }
        panic!("it does not start: {:#?}", daemon.log);
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
