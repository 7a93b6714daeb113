//! How much memory the server takes beyond its bound, and whether those who need no more are still
//! served then; and how much it takes of what it counts, where the bound is not reached.

use std::io;

use crate::hostile::Scene;
use crate::hostile::beside::longest_turn;
use crate::hostile::process::Attackers;
use crate::machine::rss_peak_bytes;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count, Nanos, Ratio};
use crate::report::figures::Wanted::{AtMost, Never, Nothing};
use crate::run::client::Client;
use crate::run::codec::{Answer, LockToken, Request};
use crate::run::keys::key_name;
use crate::scenarios::observe::stat;
use crate::servers::latchd_knows;
use crate::session::Session;

/// The option that bounds it.
const OPTION: &str = "--max-memory";

/// How much more than the bound is resident at most.
const RATIO_MAX: f64 = 1.3;

/// Locks and values of those who need no more.
const LOCKS: usize = 16;

/// Lets the attackers fill the server, and then asks what must always be possible.
pub(super) fn measure(session: &Session, scene: &Scene, figures: &mut Figures) -> io::Result<()> {
    // A server without a bound has nothing to be compared with.
    if !latchd_knows(OPTION)? {
        put(figures, None, None);
        return Ok(());
    }
    let mib = scene.size(session.options.scale());
    let bound = format!("{mib}m");
    // No other limit shall be reached before it.
    let options = [
        &[OPTION, &bound][..],
        &["--max-keys", "0", "--max-locks", "0", "--max-holds", "0"],
        &["--max-list-length", "0", "--write-timeout", "0"],
    ]
    .concat();
    let latchd = session.latchd(&options)?;
    let peak = || latchd.target.pid.and_then(rss_peak_bytes);
    let empty = peak().map(|it| it as f64);
    let mut client = Client::connect(&latchd.target)?;
    let held = hold(&mut client)?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    attackers.go()?;
    let refused = refusals(&mut client, &held)?;
    attackers.stop()?;
    let peak = peak().map(|it| it as f64);
    let ratio = peak.map(|it| it / (mib << 20) as f64);
    put(figures, ratio, Some(refused.into()));
    figures.put("memory at most", Bytes, peak, Nothing);
    figures.put("without: memory at most", Bytes, empty, Nothing);
    let turn = longest_turn(&latchd.target)?;
    figures.put("longest turn", Nanos, turn, Nothing);
    attackers.put(figures, 1);
    Ok(())
}

/// A bound that nothing here reaches.
const FAR: &str = "64g";

/// How long the last requests of the attackers may take to be served.
const SETTLED_NS: u64 = 500_000_000;

/// Lets the attackers set up, and compares what the server counts with what the system does.
pub(super) fn measure_counted(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
) -> io::Result<()> {
    if !latchd_knows(OPTION)? {
        let ratio = None;
        figures.put("memory / what is counted", Ratio, ratio, AtMost(RATIO_MAX));
        return Ok(());
    }
    let options = [OPTION, FAR, "--max-holds", "0", "--max-waiters", "0"];
    let latchd = session.latchd(&options)?;
    let peak = || latchd.target.pid.and_then(rss_peak_bytes);
    let empty = peak().map(|it| it as f64);
    let empty_counted = stat(&latchd.target, "memory_bytes")?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    attackers.go()?;
    session.clock.rest(SETTLED_NS)?;
    let counted = stat(&latchd.target, "memory_bytes")?;
    let peak = peak().map(|it| it as f64);
    let more = |with: Option<f64>, without: Option<f64>| Some(with? - without?);
    let (counted, taken) = (more(counted, empty_counted), more(peak, empty));
    let ratio = taken.zip(counted).map(|(taken, counted)| taken / counted);
    figures.put("memory / what is counted", Ratio, ratio, AtMost(RATIO_MAX));
    figures.put("memory that is counted", Bytes, counted, Nothing);
    figures.put("memory at most", Bytes, peak, Nothing);
    figures.put("without: memory at most", Bytes, empty, Nothing);
    let turn = longest_turn(&latchd.target)?;
    figures.put("longest turn", Nanos, turn, Nothing);
    attackers.stop()?;
    attackers.put(figures, 1);
    Ok(())
}

fn put(figures: &mut Figures, ratio: Option<f64>, refused: Option<f64>) {
    figures.put("memory / the bound", Ratio, ratio, AtMost(RATIO_MAX));
    let name = "releases, renewals, reads, deletes refused";
    figures.put(name, Count, refused, Never);
}

/// Takes locks and stores values before the server is full.
fn hold(client: &mut Client) -> io::Result<Vec<LockToken>> {
    let mut held = Vec::new();
    for index in 0..LOCKS {
        held.push(client.lock(&key_name("kept", 0, index))?);
        client.must(Request::Set(7), &key_name("kept", 0, index))?;
    }
    Ok(held)
}

/// How many of the requests were refused that need no memory.
fn refusals(client: &mut Client, held: &[LockToken]) -> io::Result<u32> {
    let mut refused = 0;
    for (index, token) in held.iter().enumerate() {
        let key = key_name("kept", 0, index);
        for request in [
            Request::Renew(token),
            Request::Unlock(token),
            Request::Get,
            Request::Delete,
        ] {
            let fine = client.ask(request, &key, |answer| {
                Some(matches!(answer, Answer::Ok(_)))
            })?;
            refused += u32::from(!fine);
        }
    }
    Ok(refused)
}
