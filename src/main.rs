//! latchd: reads the settings, runs the daemon. No logic.

use std::io::Write;
use std::process::ExitCode;

use latchd::config::{self, Exit, Outcome};
use latchd::daemon;

fn main() -> ExitCode {
    ExitCode::from(run().code())
}

fn run() -> Exit {
    // Lossy on purpose: a variable that is not UTF-8 must be refused by name, not overlooked.
    let env = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let config = match config::load(std::env::args_os(), &env) {
        Ok(Outcome::Run(config)) => config,
        Ok(Outcome::Inspect { path, json }) => return daemon::inspect(&path, json),
        Ok(Outcome::Repair(path)) => return daemon::repair(&path),
        Ok(Outcome::Print(text)) => {
            // A reader that has seen enough (`--help | head`) is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return Exit::Success;
        }
        Err(error) => {
            eprintln!("configuration error: {error}");
            return error.exit();
        }
    };
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    daemon::run(&config, &config::unknown_env(names))
}
