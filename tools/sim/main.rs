//! latch-sim: plays seeds of the simulator, one to read or many to trust.
//!
//! Prints what `sim::run` tells; decides nothing. Exit code 1 means that something did not hold.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use latchd::sim::{self, Keep, Totals};

const HELP: &str = "\
latch-sim plays a whole world of clients, faults and time from one number

Usage:
  latch-sim SEED              play one seed and print everything that happens
  latch-sim --seeds A..B      play the seeds from A up to, not including, B
  latch-sim A B               the same

Examples:
  latch-sim 7                 who said what to whom, in virtual milliseconds
  latch-sim 7 | tail          how it ended
  latch-sim --seeds 0..10000  a night's worth; stops at the first violation

The same seed always plays the same world. Exit code: 0 when everything held, 1 when something did
not (its last lines are printed), 2 when the arguments make no sense.
";

/// Seeds between two progress lines.
const PROGRESS_EVERY: u64 = 64;

/// The seed being played, for the panic message of a build that aborts.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("seed {}: {panic}", SEED.load(Ordering::Relaxed));
    }));
    let number = |word: &str| word.parse::<u64>().ok();
    match words[..] {
        ["-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["--seeds", range] => match range.split_once("..").map(|(a, b)| (number(a), number(b))) {
            Some((Some(from), Some(to))) => sweep(from, to),
            _ => complain(range),
        },
        [from, to] => match (number(from), number(to)) {
            (Some(from), Some(to)) => sweep(from, to),
            _ => complain(&words.join(" ")),
        },
        [seed] => number(seed).map_or_else(|| complain(seed), replay),
        _ => complain(&words.join(" ")),
    }
}

fn complain(about: &str) -> ExitCode {
    eprintln!("latch-sim: cannot make sense of {about:?}; try --help");
    ExitCode::from(2)
}

/// One seed, line by line.
fn replay(seed: u64) -> ExitCode {
    SEED.store(seed, Ordering::Relaxed);
    let outcome = sim::run(seed, Keep::All);
    let mut out = io::stdout().lock();
    for line in &outcome.lines {
        if writeln!(out, "{line}").is_err() {
            return ExitCode::SUCCESS; // a reader that has seen enough
        }
    }
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            eprintln!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// Many seeds, in numbers.
fn sweep(from: u64, to: u64) -> ExitCode {
    let mut totals = Totals::default();
    for seed in from..to {
        SEED.store(seed, Ordering::Relaxed);
        let outcome = sim::run(seed, Keep::Tail);
        if let Some(violation) = outcome.violation {
            for line in &outcome.lines {
                eprintln!("{line}");
            }
            eprintln!("\nseed {seed}: {violation}");
            eprintln!("replay: cargo run --bin latch-sim -- {seed}");
            return ExitCode::FAILURE;
        }
        totals.add(&outcome.totals);
        let played = seed - from + 1;
        if played.is_multiple_of(PROGRESS_EVERY) {
            eprint!(
                "\r{played} of {} seeds, {} grants, {} pushes",
                to - from,
                totals.grants,
                totals.pushes
            );
        }
    }
    eprintln!();
    print!("{}", table(to.saturating_sub(from), &totals));
    ExitCode::SUCCESS
}

fn table(seeds: u64, totals: &Totals) -> String {
    let late_ms = |ns: u64| format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000);
    let rows = [
        ("seeds", seeds.to_string()),
        ("turns", totals.turns.to_string()),
        ("virtual hours", (totals.virtual_ms / 3_600_000).to_string()),
        ("connections", totals.connections.to_string()),
        ("  refused", totals.refused.to_string()),
        ("  closed by the client", totals.closes.to_string()),
        ("  reset by the client", totals.resets.to_string()),
        ("  cut off by the server", totals.cut_off.to_string()),
        ("answers", totals.answers.to_string()),
        ("grants", totals.grants.to_string()),
        ("  told to their client", totals.grants_told.to_string()),
        ("  released", totals.releases.to_string()),
        ("  expired", totals.expiries.to_string()),
        ("  ended by a disconnect", totals.disconnects.to_string()),
        ("waits timed out", totals.timeouts.to_string()),
        ("answers about things", totals.things.to_string()),
        ("  values through lists", totals.values.to_string()),
        ("  values exchanged", totals.swaps.to_string()),
        ("  met at a barrier", totals.met.to_string()),
        ("pushes", totals.pushes.to_string()),
        ("  slow readers cut off", totals.overrun.to_string()),
        ("stalled readers", totals.stalls.to_string()),
        ("server stopped", totals.stops.to_string()),
        ("latest expiry, ms", late_ms(totals.late_ns_max)),
        ("  while running, ms", late_ms(totals.late_awake_ns_max)),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text.push_str(&format!("{name:<26}{value:>12}\n"));
    }
    text
}
