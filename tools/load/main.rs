//! latch-load: loads a lock server from one thread, checks every answer, says how fast it was.
//!
//! Reading order: `spec` what a run is, `drive` the loop, `cycle` what each connection does, `ledger`
//! what must hold; then `plans`, `scenes` and `compare`. Exit code 1 means that an answer was wrong.

mod args;
mod ceiling;
mod clock;
mod compare;
mod conn;
mod cycle;
mod dialect;
mod drive;
mod holders;
mod json;
mod ledger;
mod outcome;
mod plans;
mod report;
mod scenes;
mod serve;
mod session;
mod setup;
mod spec;
mod svg;
mod target;

use std::io;
use std::process::ExitCode;

use latchd::daemon::pin::pin_to_cpu;

use crate::args::Order;
use crate::session::Session;
use crate::target::Target;

fn main() -> ExitCode {
    match obey(args::read()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("latch-load: not everything was right");
            ExitCode::FAILURE
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            eprintln!("latch-load: {error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("latch-load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything was right.
fn obey(order: Order) -> io::Result<bool> {
    match order {
        Order::Run(spec, options) => plans::runs(&Session::open(options, &[])?, vec![*spec], 1),
        Order::Plan(name, options) => match plans::find(&name) {
            Some(plan) => plans::run(plan, options),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "no such plan")),
        },
        Order::Compare { with, svg, options } => compare::run(&with, svg.as_deref(), options),
        Order::Holders { target, count, run } => {
            let target = Target::parse(&target).map_err(io::Error::other)?;
            holders::hold(&target, count, run)?;
            Ok(true)
        }
        Order::Ceiling {
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
