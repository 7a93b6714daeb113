//! Many connections that each hold one lock, in a process of their own. When it is killed, the
//! system closes all of them at once, while this program measures what other clients feel.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::machine::raise_descriptors;
use crate::output::print;
use crate::run::client::Client;
use crate::run::codec::{NO_TOKEN, Request};
use crate::run::keys::key_name;
use crate::servers::target::Target;

/// What the process says when every lock is held.
const HELD: &str = "held";

/// The process; killed when this is dropped.
pub(crate) struct Holders(Child);

impl Holders {
    /// Starts it and waits until every lock is held.
    pub(crate) fn start(target: &Target, count: usize, run: u16) -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["holders", "--target", &target.url()])
            .args(["--count", &count.to_string(), "--run", &run.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut holders = Self(child);
        let mut line = String::new();
        if let Some(output) = holders.0.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim() == HELD {
            Ok(holders)
        } else {
            Err(io::Error::other("not every lock could be taken"))
        }
    }

    /// Kills it, and does not wait until it has ended.
    pub(crate) fn leave(&mut self) {
        let _ = self.0.kill();
    }

    /// Waits until it has ended; by then the system has closed every connection.
    pub(crate) fn gone(mut self) -> io::Result<()> {
        self.0.wait().map(drop)
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the process does: takes the locks, then waits until its standard input ends.
pub(crate) fn hold(target: &Target, count: usize, run: u16) -> io::Result<()> {
    raise_descriptors();
    let mut held = Vec::new();
    for index in 0..count {
        let mut client = Client::connect(target)?;
        let request = Request::LockFor(&NO_TOKEN, 3_600_000);
        client.must(request, &key_name("hold", run, index))?;
        held.push(client.into_stream()?);
    }
    print(HELD)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
