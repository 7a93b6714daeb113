//! latchd: reads the settings, runs the daemon. No logic.

use std::process::ExitCode;

use latchd::config::{self, Exit, Outcome};
use latchd::daemon::{self, Supervision};

fn main() -> ExitCode {
    ExitCode::from(run().code())
}

fn run() -> Exit {
    // Lossy on purpose: a variable that is not UTF-8 must be refused by name, not overlooked.
    let env = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let names = || std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    match config::load(std::env::args_os(), &env) {
        Ok(Outcome::Run(config)) => {
            let supervision = Supervision::read(&env);
            daemon::run(&config, &supervision, &config::unknown_env(names()))
        }
        Ok(Outcome::Check(config)) => daemon::check_config(&config, &config::unknown_env(names())),
        Ok(Outcome::Inspect { path, json }) => daemon::inspect(&path, json),
        Ok(Outcome::Repair(path)) => daemon::repair(&path),
        Ok(Outcome::Reshard { config, from, to }) => daemon::reshard(&config, from, to),
        Ok(Outcome::Print(text)) => daemon::print(&text),
        Err(error) => {
            eprintln!("configuration error: {error}");
            error.exit()
        }
    }
}
