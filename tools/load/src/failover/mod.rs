//! A cluster to which something is done under load, over and over: is everything right, and for how long is nothing
//! granted?
//!
//! Threads take locks, count, and store values with the client that programs use, while a command that is given takes the
//! leader away, or does something else to the cluster, and makes it whole again (`tools/cluster/failover` has such a
//! command, and starts a cluster for it; latch-load does not know what the names of its faults mean). What must
//! hold is in `witness`: one holder at a time, fences that grow, nothing lost that was acknowledged, and a guard that
//! says it is held only if it is. What a client cannot know (an answer that was lost) is counted, and is not wrong.

mod witness;
mod worker;

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use latchd::client::Client;

use crate::clock::Clock;
use crate::output::{eprint, print};
use crate::report::format::aligned;

use witness::Witness;
use worker::{Kind, Worker};

/// What is asked for.
pub(crate) struct Settings {
    /// The members, as the client takes them.
    pub(crate) server: String,
    /// What does each fault, and ends it.
    pub(crate) step: String,
    pub(crate) faults: Vec<String>,
    /// Those of them during which nothing can be granted.
    pub(crate) until_healed: Vec<String>,
    /// For how long nothing may be granted because of a fault, in nanoseconds.
    pub(crate) within: Vec<(String, u64)>,
    pub(crate) rounds: usize,
}

/// Reads `FAULT=SECONDS`.
pub(crate) fn parse_within(list: &[String]) -> Result<Vec<(String, u64)>, String> {
    let one = |text: &String| {
        let (fault, seconds) = text.split_once('=')?;
        let seconds: f64 = seconds.parse().ok()?;
        (seconds.is_finite() && seconds > 0.0).then(|| (fault.to_owned(), (seconds * 1e9) as u64))
    };
    let all = list.iter();
    all.map(|text| one(text).ok_or_else(|| format!("--within {text}: wants FAULT=SECONDS")))
        .collect()
}

/// How many threads take locks and count: some keys of their own, as many those that they share, some new ones every time.
const WORKERS: usize = 14;
const ON_OWN_KEY: usize = 6;
const ON_NEW_KEYS: usize = 2;
const SHARED_KEYS: usize = 3;

/// How long a leader that is missing may be waited for.
const LEADERLESS: Duration = Duration::from_secs(30);

/// A round lasts at least so long, and until grants come again as they should.
const ROUND_NS: u64 = 2_000_000_000;
const STEADY_NS: u64 = 300_000_000;
/// After so long without a grant the cluster does not come back.
const GIVEN_UP_NS: u64 = 60_000_000_000;

/// Does one fault after the other; returns whether everything was right.
pub(crate) fn run(settings: &Settings) -> io::Result<bool> {
    let clock = Clock::start();
    let client = |keeps: bool| {
        let client = Client::builder(&settings.server)
            .keep(keeps)
            .connect_timeout(LEADERLESS)
            .answer_timeout(Duration::from_secs(3));
        client.connect().map_err(io::Error::other)
    };
    let clients = [client(false)?, client(true)?];
    let witness = Witness::new(WORKERS, SHARED_KEYS);
    let is_over = AtomicBool::new(false);
    let mut table = Table::default();
    let result = thread::scope(|scope| {
        for index in 0..WORKERS + clients.len() {
            let kind = match index.checked_sub(WORKERS) {
                Some(_) => Kind::HoldsForLong,
                None if index < ON_OWN_KEY => Kind::OnOwnKey,
                None if index >= WORKERS - ON_NEW_KEYS => Kind::OnNewKeys,
                None => Kind::OnSharedKeys,
            };
            let worker = Worker {
                index,
                kind,
                client: &clients[index % clients.len()],
                witness: &witness,
                clock: &clock,
                is_over: &is_over,
            };
            let thread = thread::Builder::new().name(format!("load-{index}"));
            thread.spawn_scoped(scope, move || worker.run())?;
        }
        let result = (1..=settings.rounds).try_for_each(|round| {
            let fault = &settings.faults[(round - 1) % settings.faults.len()];
            let gap_ns = run_round(settings, fault, round, &witness, &clock)?;
            let wrong = witness.wrong().count;
            eprint(&format!(
                "round {round}/{}: {fault}, {:.2} s without a grant, {wrong} wrong",
                settings.rounds,
                gap_ns as f64 / 1e9
            ));
            table.add(fault, gap_ns, wrong);
            Ok(())
        });
        is_over.store(true, Ordering::SeqCst);
        result
    });
    let wrong = witness.wrong();
    print(&table.text(&settings.within))?;
    print(&witness.summary())?;
    for what in &wrong.first {
        print(&format!("WRONG: {what}"))?;
    }
    result.map(|()| wrong.count == 0)
}

/// Does a fault, waits until there are grants again, and heals it; or the other way round, if there can be none before.
/// Returns the longest time without a grant.
fn run_round(
    settings: &Settings,
    fault: &str,
    round: usize,
    witness: &Witness,
    clock: &Clock,
) -> io::Result<u64> {
    let round = round.to_string();
    let lasts = settings.until_healed.iter().any(|it| it == fault);
    witness.begin_round();
    let began_ns = clock.now_ns();
    step(settings, fault, &round)?;
    if lasts {
        clock.rest(ROUND_NS)?;
        step(settings, "heal", &round)?;
        await_grants(fault, clock.now_ns(), witness, clock)?;
        return Ok(witness.longest_gap_ns(began_ns));
    }
    // From now on: what has to be found out before a fault can be done takes a while, and grants come meanwhile.
    await_grants(fault, clock.now_ns(), witness, clock)?;
    let gap_ns = witness.longest_gap_ns(began_ns);
    step(settings, "heal", &round)?;
    clock.rest(STEADY_NS)?;
    Ok(gap_ns)
}

/// Waits until grants have come for a while.
fn await_grants(fault: &str, since_ns: u64, witness: &Witness, clock: &Clock) -> io::Result<()> {
    loop {
        let now_ns = clock.now_ns();
        let last_ns = witness.last_grant_ns().max(since_ns);
        if now_ns - since_ns >= ROUND_NS && now_ns - last_ns < STEADY_NS {
            return Ok(());
        }
        if now_ns - last_ns > GIVEN_UP_NS {
            let why = format!("nothing was granted for a minute after {fault}");
            return Err(io::Error::other(why));
        }
        clock.rest(20_000_000)?;
    }
}

fn step(settings: &Settings, what: &str, round: &str) -> io::Result<()> {
    let script = format!("{} \"$@\"", settings.step);
    let mut command = Command::new("sh");
    let status = command
        .args(["-c", &script, "step", what, round])
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{} {what} {round}: {status}",
            settings.step
        ))),
    }
}

/// What came of each fault.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    wrong: u64,
}

struct Row {
    fault: String,
    gaps_ns: Vec<u64>,
    wrong: u64,
}

impl Table {
    fn add(&mut self, fault: &str, gap_ns: u64, wrong_so_far: u64) {
        let wrong = wrong_so_far - self.wrong;
        self.wrong = wrong_so_far;
        match self.rows.iter_mut().find(|it| it.fault == fault) {
            Some(row) => {
                row.gaps_ns.push(gap_ns);
                row.wrong += wrong;
            }
            None => self.rows.push(Row {
                fault: fault.to_owned(),
                gaps_ns: vec![gap_ns],
                wrong,
            }),
        }
    }

    fn text(&self, within: &[(String, u64)]) -> String {
        let head = [
            "fault",
            "rounds",
            "no grants, p50",
            "longest",
            "wanted",
            "met",
            "wrong",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for Row {
            fault,
            gaps_ns,
            wrong,
        } in &self.rows
        {
            let mut gaps_ns = gaps_ns.clone();
            gaps_ns.sort_unstable();
            let seconds = |ns: Option<&u64>| match ns {
                Some(ns) => format!("{:.2} s", *ns as f64 / 1e9),
                None => "-".to_owned(),
            };
            let p50_ns = gaps_ns.get(gaps_ns.len() / 2);
            let wanted = within.iter().find(|(name, _)| name == fault);
            let wanted_ns = wanted.map(|(_, ns)| ns);
            let (wanted, met) = match (wanted_ns, p50_ns) {
                (Some(most), Some(p50)) if p50 <= most => {
                    (format!("≤ {}", seconds(Some(most))), "yes")
                }
                (Some(most), _) => (format!("≤ {}", seconds(Some(most))), "**no**"),
                (None, _) => (String::new(), ""),
            };
            rows.push(vec![
                fault.clone(),
                gaps_ns.len().to_string(),
                seconds(p50_ns),
                seconds(gaps_ns.last()),
                wanted,
                met.to_owned(),
                wrong.to_string(),
            ]);
        }
        aligned(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_told_with_the_fault_that_brought_them() {
        let mut table = Table::default();
        table.add("kill", 3_000_000_000, 0);
        table.add("stop", 1_000_000_000, 2);
        table.add("kill", 5_000_000_000, 2);
        let within = parse_within(&["kill=4".to_owned(), "stop=1".to_owned()]);
        let text = table.text(&within.unwrap_or_default());
        let row = |fault: &str| {
            text.lines()
                .find(|it| it.contains(fault))
                .map(str::to_owned)
        };
        let kill = row("kill").unwrap_or_default();
        assert!(kill.contains("5.00 s") && kill.contains("| 0"), "{text}");
        assert!(
            kill.contains("≤ 4.00 s") && kill.contains("**no**"),
            "{text}"
        );
        let stop = row("stop").unwrap_or_default();
        assert!(stop.contains("| 2") && stop.contains("yes"), "{text}");
    }

    #[test]
    fn a_target_is_a_fault_and_seconds() {
        let parsed = parse_within(&["term=0.2".to_owned()]);
        assert_eq!(parsed, Ok(vec![("term".to_owned(), 200_000_000)]));
        for bad in ["term", "term=", "term=-1", "term=inf", "term=x"] {
            assert!(parse_within(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
