//! The attackers' process: this program once more, which gets ready, attacks and stops when it is
//! told to.
//!
//! It has a process of its own, so that its work is not in the way of those who are measured, and
//! it is as nice as can be while it attacks, since they share a core. It says one line for everything that it
//! counted, then `ready`, and with it how long until the moment when something ends.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::hostile::Scene;
use crate::hostile::crowd::{Crowd, LEAVE, STOP};
use crate::machine::{be_nice, raise_descriptors};
use crate::output::print;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Count, PerSecond};
use crate::report::figures::Wanted::Nothing;
use crate::servers::child;
use crate::servers::target::Target;
use crate::session::Session;

const COUNT: &str = "count ";
const READY: &str = "ready";
const GO: &str = "go";
const LEFT: &str = "left";
const REQUESTS: &str = "requests ";

/// The process, seen from the one that measures; killed when this is dropped.
pub(super) struct Attackers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it counted, by name.
    counts: Vec<(String, f64)>,
    /// When what it set up ends, on the clock of this process.
    pub(super) moment_ns: Option<u64>,
    requests: Option<f64>,
}

impl Attackers {
    /// Starts them and waits until they are ready.
    pub(super) fn start(session: &Session, scene: &Scene, target: &Target) -> io::Result<Self> {
        session.say(&format!("{}: getting ready", scene.name));
        let mut command = Command::new(std::env::current_exe()?);
        let pid = target.pid.unwrap_or_default().to_string();
        let scale = session.options.scale().to_string();
        command.args(["attack", "--scene", scene.name, "--scale", &scale]);
        command.args(["--target", &target.url(), "--pid", &pid]);
        if let Some(http) = target.http {
            command.args(["--http", &http.to_string()]);
        }
        let mut child = child::command(&command)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        let mut attackers = Self {
            child,
            input,
            output: BufReader::new(output),
            counts: Vec::new(),
            moment_ns: None,
            requests: None,
        };
        let left = attackers.until(READY)?;
        let now = session.clock.now_ns();
        attackers.moment_ns = left.trim().parse().ok().map(|left: u64| now + left);
        session.say("");
        Ok(attackers)
    }

    /// They begin.
    pub(super) fn go(&mut self) -> io::Result<()> {
        self.tell(GO)
    }

    /// Those who own something leave; returns when the last one did, on the machine's clock.
    pub(super) fn leave(&mut self) -> io::Result<u64> {
        self.tell(LEAVE)?;
        let left = self.until(LEFT)?.trim().parse();
        left.map_err(|_| io::Error::other("the attackers do not say when they left"))
    }

    /// They stop, and their connections are closed.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.tell(STOP)?;
        let said = self.until(REQUESTS)?;
        self.requests = said.trim().parse().ok();
        self.child.wait().map(drop)
    }

    /// Says a word in one piece: whoever reads half of it may have ended before the other half.
    fn tell(&mut self, word: &str) -> io::Result<()> {
        self.input.write_all(format!("{word}\n").as_bytes())
    }

    /// What they counted under this name.
    pub(super) fn count(&self, name: &str) -> f64 {
        let found = self.counts.iter().find(|it| it.0 == name);
        found.map_or(0.0, |it| it.1)
    }

    /// Puts what they counted, and how much they asked in so many nanoseconds.
    pub(super) fn put(&self, figures: &mut Figures, worked_ns: u64) {
        for (name, count) in &self.counts {
            figures.put(name, Count, Some(*count), Nothing);
        }
        if let Some(requests) = self.requests.filter(|&it| it > 0.0) {
            let per_s = requests * 1e9 / worked_ns.max(1) as f64;
            figures.put(
                "requests sent by the attackers",
                PerSecond,
                Some(per_s),
                Nothing,
            );
        }
    }

    /// Reads lines until one begins with this word, and returns the rest of it.
    fn until(&mut self, word: &str) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the attackers ended by themselves"));
            }
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.to_owned());
            }
            let counted = line.trim_end().strip_prefix(COUNT);
            if let Some((count, name)) = counted.and_then(|it| it.split_once(' ')) {
                self.counts.retain(|it| it.0 != name);
                self.counts
                    .push((name.to_owned(), count.parse().unwrap_or_default()));
            }
        }
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process does.
pub(crate) fn attack(scene: &str, scale: f64, target: Target) -> io::Result<()> {
    let scene = Scene::find(scene).ok_or(io::ErrorKind::InvalidInput)?;
    raise_descriptors();
    let mut crowd = Crowd::new(target, scene.size(scale))?;
    (scene.attack)(&mut crowd)?;
    say_counts(&crowd)?;
    let left = crowd.left_ns().map(|it| it.to_string());
    print(&format!("{READY} {}", left.unwrap_or_default()))?;
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        return Ok(());
    }
    crowd.requests = 0;
    be_nice();
    crowd.work(|ns| print(&format!("{LEFT} {ns}")))?;
    say_counts(&crowd)?;
    print(&format!("{REQUESTS}{}", crowd.requests))
}

fn say_counts(crowd: &Crowd) -> io::Result<()> {
    for (name, count) in &crowd.counts {
        print(&format!("{COUNT}{count} {name}"))?;
    }
    Ok(())
}
