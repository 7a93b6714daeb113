//! Clients leave while very many locks of somebody else are held: what does everybody else feel?

use std::io;

use hdrhistogram::Histogram;

use crate::report::figures::Figures;
use crate::report::figures::Unit::{Nanos, Ratio};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{Answer, Codec, NO_TOKEN, Request};
use crate::run::keys::key_name;
use crate::run::outcome::{latencies, quantile};
use crate::scenarios::held_locks::fill;
use crate::scenarios::observe::{MS, put_felt, subject};
use crate::servers::target::Target;
use crate::session::Session;

/// Locks of each client that leaves.
const LOCKS_EACH: usize = 3;

/// Clients leave one after the other while another client holds very many locks.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let (held, clients) = (session.count(300_000), session.count(1_000));
    figures.about(format!(
        "{} clients leave, {} locks of another",
        grouped(clients as f64),
        grouped(held as f64)
    ));
    let latchd = subject(session)?;
    let without = departures(session, &latchd.target, clients)?;
    let held = fill(session, &latchd.target, held)?;
    let with = departures(session, &latchd.target, clients)?;
    drop(held);
    let p99s = quantile(&with, 0.99).zip(quantile(&without, 0.99));
    let ratio = p99s.map(|(with, without)| with as f64 / without as f64);
    let longer = with.max().saturating_sub(without.max()) as f64;
    figures.put("others' p99 / without the locks", Ratio, ratio, AtMost(1.2));
    figures.put(
        "others' most, above without",
        Nanos,
        Some(longer),
        AtMost(3.0 * MS),
    );
    put_felt(figures, "others'", &with, Nothing);
    put_felt(figures, "without the locks: others'", &without, Nothing);
    Ok(())
}

/// Each client leaves just before a request of another client, whose latency then includes all that
/// leaving costs.
fn departures(session: &Session, target: &Target, clients: usize) -> io::Result<Histogram<u64>> {
    let run = fastrand::u16(..);
    let mut probe = Client::connect(target)?;
    let probe_key = key_name("prob", run, 0);
    let mut felt = latencies();
    for index in 0..clients {
        let mut client = Client::connect(target)?;
        let write = |at: usize, codec: &Codec, out: &mut Vec<u8>| {
            let key = key_name("leav", run, index * LOCKS_EACH + at);
            codec.encode(Request::Lock(&NO_TOKEN), &key, out);
        };
        let fine = |answer: &Answer<'_>| matches!(answer, Answer::Ok(_));
        client.many(LOCKS_EACH, LOCKS_EACH, write, fine)?;
        drop(client);
        let asked = session.clock.now_ns();
        let token = probe.lock(&probe_key)?;
        felt.saturating_record(session.clock.now_ns() - asked);
        probe.must(Request::Unlock(&token), &probe_key)?;
    }
    Ok(felt)
}
