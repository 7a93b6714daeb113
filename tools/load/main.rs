//! latch-load: loads a lock server from one thread, checks every answer, says how fast it was.
//!
//! Reading order: `spec` what a run is, `event_loop` the loop, `cycles` what each connection does, `ledger`
//! what must hold; then `plans` and `scenarios`, `comparison` and `proof`. Exit code 1 means that an answer was wrong.

mod args;
mod ceiling;
mod child;
mod client;
mod clock;
mod codec;
mod compare;
mod comparison;
mod conn;
mod cycles;
mod disconnect_scenarios;
mod event_loop;
mod figures;
mod held_locks;
mod holders;
mod json;
mod ledger;
mod outcome;
mod output;
mod plans;
mod proof;
mod report;
mod scenarios;
mod serve;
mod session;
mod setup;
mod spec;
mod svg;
mod target;

use std::io;
use std::process::ExitCode;

use latchd::daemon::pin::pin_to_cpu;

use crate::args::Action;
use crate::output::eprint;

fn main() -> ExitCode {
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

/// Whether everything was right.
fn act(action: Action) -> io::Result<bool> {
    match action {
        Action::Run(spec, options) => plans::one(*spec, options),
        Action::Plan(name, options) => match plans::find(&name) {
            Some(plan) => plans::run(plan, options),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "no such plan")),
        },
        Action::Compare { svg, options } => compare::run(svg.as_deref(), options),
        Action::Proof { svg, options } => proof::run(svg.as_deref(), options),
        Action::Holders { target, count, run } => {
            holders::hold(&target, count, run)?;
            Ok(true)
        }
        Action::Child { parent, words } => {
            child::become_server(parent, &words)?;
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
            ceiling::serve(port, unix.as_deref(), seconds)?;
            Ok(true)
        }
    }
}
