//! latch-sim: plays seeds of the simulator, one to read or many to trust.
//!
//! Prints what `sim::run` tells; decides nothing. Exit code 1 means that something did not hold, 64
//! that the arguments make no sense.

use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use latch_sim::{self as sim, Keep, Totals};
use latchd::config::Exit;

const HELP: &str = "\
latch-sim runs the whole server against simulated clients, faults and time, all
made from one number, the seed. The same seed always plays the same run, so a
failure can be played again.

Usage:
  latch-sim SEED        play one seed and print everything that happens
  latch-sim A..B        play the seeds from A up to, not including, B, and print
                        the totals; also written --seeds A..B

Examples:
  latch-sim 7           who said what to whom, in virtual milliseconds
  latch-sim 7 | tail    how it ended
  latch-sim 0..10000    a night's worth; stops at the first seed that fails

From a checkout: cargo run --release -p latch-sim -- 7

Exit codes:
  0   everything held
  1   something did not hold; its seed and the last lines before it are printed
  64  wrong command line
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
    match words[..] {
        [] => {
            eprint!("{HELP}");
            ExitCode::from(Exit::Usage.code())
        }
        ["-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["--seeds", range] => seeds(range).map_or_else(|| complain(range), sweep),
        [range] if range.contains("..") => seeds(range).map_or_else(|| complain(range), sweep),
        [seed] => number(seed).map_or_else(|| complain(seed), replay),
        _ => complain(&words.join(" ")),
    }
}

/// Digits only: a seed has no sign.
fn number(word: &str) -> Option<u64> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|_| is_number)
}

/// `A..B`; one that holds no seed is refused, because playing none would look like success.
fn seeds(range: &str) -> Option<Range<u64>> {
    let (from, to) = range.split_once("..")?;
    let seeds = number(from)?..number(to)?;
    (!seeds.is_empty()).then_some(seeds)
}

fn complain(about: &str) -> ExitCode {
    eprintln!(
        "latch-sim: {about:?} is neither a seed such as 7 nor a range of seeds such as 0..100; \
         latch-sim --help says more"
    );
    ExitCode::from(Exit::Usage.code())
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
fn sweep(seeds: Range<u64>) -> ExitCode {
    let mut totals = Totals::default();
    let count = seeds.end - seeds.start;
    for (played, seed) in (1_u64..).zip(seeds) {
        SEED.store(seed, Ordering::Relaxed);
        let outcome = sim::run(seed, Keep::Tail);
        if let Some(violation) = outcome.violation {
            for line in &outcome.lines {
                eprintln!("{line}");
            }
            eprintln!("\nseed {seed}: {violation}");
            eprintln!("replay: cargo run -p latch-sim -- {seed}");
            return ExitCode::FAILURE;
        }
        totals.add(&outcome.totals);
        if played.is_multiple_of(PROGRESS_EVERY) {
            eprint!(
                "\r{played} of {count} seeds, {} grants, {} pushes",
                totals.grants, totals.pushes
            );
        }
    }
    eprintln!();
    print!("{}", table(count, &totals));
    ExitCode::SUCCESS
}

fn table(seeds: u64, totals: &Totals) -> String {
    let in_ms = |ns: u64| format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000);
    let rows = [
        ("seeds", seeds.to_string()),
        ("turns", totals.turns.to_string()),
        ("virtual hours", (totals.virtual_ms / 3_600_000).to_string()),
        ("connections", totals.connections.to_string()),
        ("  with TLS", totals.encrypted.to_string()),
        ("  of crowds besides", totals.members.to_string()),
        ("  refused", totals.refused.to_string()),
        ("  during a shutdown", totals.newcomers.to_string()),
        ("  closed by the client", totals.closes.to_string()),
        ("  reset by the client", totals.resets.to_string()),
        ("  cut off by the server", totals.cut_off.to_string()),
        ("answers", totals.answers.to_string()),
        ("grants", totals.grants.to_string()),
        ("  told to their client", totals.grants_told.to_string()),
        ("  released", totals.releases.to_string()),
        ("  expired", totals.expiries.to_string()),
        ("  ended by a disconnect", totals.disconnects.to_string()),
        ("  outlived their connections", totals.outlived.to_string()),
        ("  broken over HTTP", totals.breaks.to_string()),
        ("answers over HTTP", totals.http_answers.to_string()),
        ("  grants to owners", totals.named_grants.to_string()),
        ("  granted again", totals.granted_again.to_string()),
        ("  pages of locks", totals.pages.to_string()),
        ("  walks over all", totals.walks.to_string()),
        ("  heads alone", totals.heads.to_string()),
        ("  streams of figures", totals.figures.to_string()),
        ("waits timed out", totals.timeouts.to_string()),
        ("answers about entries", totals.entry_answers.to_string()),
        ("  values through lists", totals.values.to_string()),
        ("  values exchanged", totals.swaps.to_string()),
        ("  met at a barrier", totals.met.to_string()),
        ("answers to stats and who", totals.reports.to_string()),
        ("range locks", totals.ranges_granted.to_string()),
        ("  with one right answer", totals.predicted.to_string()),
        ("  deadlocks", totals.deadlocks.to_string()),
        ("  cancelled", totals.cancelled.to_string()),
        ("  clients that came back", totals.resumed.to_string()),
        ("  refused in grace", totals.refused_in_grace.to_string()),
        ("refused at a limit", totals.no_room.to_string()),
        ("  for want of memory", totals.no_memory.to_string()),
        ("pushes", totals.pushes.to_string()),
        ("  slow readers cut off", totals.overrun.to_string()),
        ("stalled readers", totals.stalls.to_string()),
        ("server stopped", totals.stops.to_string()),
        ("server restarted", totals.restarts.to_string()),
        ("  too early", totals.ports_taken.to_string()),
        ("data directories opened again", totals.reopened.to_string()),
        ("  after a power loss", totals.power_losses.to_string()),
        ("  grants held again", totals.restored.to_string()),
        ("  ranges pending", totals.ranges_restored.to_string()),
        ("  ranges had back", totals.ranges_reclaimed.to_string()),
        ("  claimed with reclaim", totals.reclaimed.to_string()),
        (
            "  refused by a full disk",
            totals.refused_by_disk.to_string(),
        ),
        ("  failed syncs", totals.disk_failures.to_string()),
        ("  compactions", totals.compactions.to_string()),
        ("longest turn, ms", in_ms(totals.turn_ns_max)),
        ("latest departure, ms", in_ms(totals.departure_late_ns_max)),
        ("latest expiry, ms", in_ms(totals.late_ns_max)),
        ("  while running, ms", in_ms(totals.late_awake_ns_max)),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text.push_str(&format!("{name:<26}{value:>12}\n"));
    }
    text
}
