//! Very many holders disconnect at once: what does everybody else feel, and is all free again?

use std::cell::RefCell;
use std::io;

use crate::report::figures::Figures;
use crate::report::figures::Unit::{Count, Nanos, Ratio};
use crate::report::figures::Wanted::{Never, Nothing};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{Answer, Codec, NO_TOKEN, Request};
use crate::run::keys::key_name;
use crate::run::spec::Spec;
use crate::scenarios::holders::Holders;
use crate::scenarios::observe::{PATIENCE, longest_turn, put_felt, subject};
use crate::servers::target::Target;
use crate::session::Session;

/// Very many holders disconnect at once.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(10_000);
    figures.about(format!(
        "{} holders disconnect at once",
        grouped(count as f64)
    ));
    let latchd = subject(session)?;
    let spec = session.short(Spec::default());
    let calm = session.run("before", &spec, &latchd.target)?;
    let run = fastrand::u16(..);
    session.say(&format!("{count} connections take a lock each"));
    let holders = RefCell::new(Holders::start(&latchd.target, count, run)?);
    let leave = || holders.borrow_mut().leave();
    let busy = session.run_and(
        "while they leave",
        &spec,
        &latchd.target,
        Some(Box::new(leave)),
    )?;
    holders.into_inner().gone()?;
    let kept = kept(session, &latchd.target, count, run)?;
    if kept > 0 {
        figures
            .wrong
            .add(format!("{kept} locks of holders that left are not free"));
    }
    put_felt(figures, "others'", &busy.take, Nothing);
    put_felt(figures, "before: others'", &calm.take, Nothing);
    let ratio = busy.per_s().zip(calm.per_s()).map(|(a, b)| a / b);
    figures.put("op/s / before", Ratio, ratio, Nothing);
    for (who, spent) in [("server", busy.server), ("load", busy.load)] {
        let waited = spent.map(|it| it.waited_ns as f64);
        figures.put(
            &format!("{who} waited for its core"),
            Nanos,
            waited,
            Nothing,
        );
    }
    figures.put(
        "longest turn",
        Nanos,
        longest_turn(&latchd.target)?,
        Nothing,
    );
    figures.put("locks not free afterwards", Count, Some(kept as f64), Never);
    figures.check(&calm);
    figures.check(&busy);
    Ok(())
}

/// How many locks cannot be taken. A slow server gets a few seconds; only locks that stay held
/// after that are wrong.
fn kept(session: &Session, target: &Target, count: usize, run: u16) -> io::Result<usize> {
    let mut client = Client::connect(target)?;
    let mut left: Vec<usize> = (0..count).collect();
    for _ in 0..PATIENCE {
        let write = |at: usize, codec: &Codec, out: &mut Vec<u8>| {
            let key = key_name("hold", run, left[at]);
            codec.encode(Request::LockFor(&NO_TOKEN, 60_000), &key, out);
        };
        let mut refused = Vec::with_capacity(left.len());
        client.many(left.len(), count, write, |answer| {
            refused.push(!matches!(answer, Answer::Ok(_)));
            true
        })?;
        let mut refused = refused.into_iter();
        left.retain(|_| refused.next().unwrap_or(true));
        if left.is_empty() {
            break;
        }
        session.clock.rest(100_000_000)?;
    }
    Ok(left.len())
}
