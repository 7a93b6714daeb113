//! latch-load: loads a lock server from one thread, checks every answer, says how fast it was.
//!
//! Reading order: `run` is one run, from what it does to what must hold; `servers` starts and finds
//! the servers it is run against; `scenarios` are more than a run, `hostile` are attacks, `durable`
//! is about disks, `cluster` about what etcd costs, `failover` about leaders that go; `plans`, `comparison` and `proof`
//! put them together; `report` shows what was
//! found. Exit code 1 means that an answer was wrong.

#![cfg_attr(
    test,
    allow(dead_code, reason = "what a program uses, its unit tests may not")
)]

mod args;
mod behind;
mod clock;
mod cluster;
mod comparison;
mod durable;
mod failover;
mod hostile;
mod machine;
mod options;
mod output;
mod plans;
mod proof;
mod report;
mod run;
mod scenarios;
mod servers;
mod session;

use std::fs;
use std::io;
use std::process::ExitCode;

use latchd::daemon::pin::pin_to_cpu;

use crate::args::Action;
use crate::output::{eprint, print};
use crate::report::chart::Chart;
use crate::report::svg;

/// The whole program: reads the command line, does what it asks, says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let action = match args::read() {
        Ok(action) => action,
        Err(complaint) => {
            eprint(&format!("latch-load: {complaint}"));
            return ExitCode::from(2);
        }
    };
    match act(action) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprint("latch-load: not everything was right");
            ExitCode::FAILURE
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            eprint(&format!("latch-load: {error}"));
            ExitCode::from(2)
        }
        Err(error) => {
            eprint(&format!("latch-load: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line asks; returns whether everything was right.
fn act(action: Action) -> io::Result<bool> {
    match action {
        Action::Run(spec, options) => plans::one(*spec, options),
        Action::Plan(name, options) => match plans::find(&name) {
            Some(plan) => plans::run(plan, options),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "no such plan")),
        },
        Action::Compare { svg, options } => comparison::run(svg.as_deref(), options),
        Action::Proof { svg, options } => proof::run(svg.as_deref(), options),
        Action::Failover(settings) => failover::run(&settings),
        Action::Draw { page } => {
            let at = |error| io::Error::other(format!("{}: {error}", page.display()));
            let text = fs::read_to_string(&page).map_err(|error| at(error.to_string()))?;
            print(svg::draw(&Chart::read(&text).map_err(at)?).trim_end())?;
            Ok(true)
        }
        Action::Holders { target, count, run } => {
            scenarios::holders::hold(&target, count, run)?;
            Ok(true)
        }
        Action::Attack {
            scene,
            scale,
            target,
        } => {
            hostile::process::attack(&scene, scale, target)?;
            Ok(true)
        }
        Action::Child { parent, words } => {
            servers::child::become_server(parent, &words)?;
            Ok(true)
        }
        Action::Ceiling {
            port,
            unix,
            cpu,
            seconds,
        } => {
            if let Some(cpu) = cpu {
                pin_to_cpu(cpu)?;
            }
            servers::ceiling::serve(port, unix.as_deref(), seconds)?;
            Ok(true)
        }
    }
}
