//! 64 connections, acquire and release: how much of the speed in memory is left on a disk.

use std::io;

use crate::comparison::{Job, Measure};
use crate::durable::Kept;
use crate::durable::folder::{Folder, records_per_batch};
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Count, Nanos, PerSecond, Ratio};
use crate::report::figures::Wanted::{AtLeast, Nothing};
use crate::run::outcome::Outcome;
use crate::session::Session;

/// All servers in turn, each started for this.
pub(super) fn run(session: &Session, folder: &Folder, figures: &mut Figures) -> io::Result<()> {
    figures.about(Job::Plain.name());
    let spec = session.short(Job::Plain.spec());
    let mut found = Vec::new();
    let mut records = None;
    for kept in Kept::ALL {
        let server = kept.start(session, folder)?;
        let outcome = match &server {
            Some(server) => Some(session.run(kept.name(), &spec, &server.tcp)?),
            None => None,
        };
        if kept == Kept::Sync {
            records = records_per_batch(&folder.place(kept.name()))?;
        }
        if let Some(outcome) = &outcome {
            figures.check(outcome);
        }
        found.push((kept, outcome));
    }
    let of = |kept: Kept, measure: Measure| {
        let (_, outcome) = found.iter().find(|it| it.0 == kept)?;
        outcome.as_ref().and_then(|it: &Outcome| measure.of(it))
    };
    for (kept, other, wanted) in [
        (Kept::Sync, Kept::InMemory, AtLeast(0.4)),
        (Kept::Sync, Kept::Redis, AtLeast(1.3)),
        (Kept::Async, Kept::InMemory, Nothing),
    ] {
        let rates = of(kept, Measure::Rate).zip(of(other, Measure::Rate));
        let name = format!("op/s, {} / {}", kept.name(), other.name());
        figures.put(&name, Ratio, rates.map(|(a, b)| a / b), wanted);
    }
    for kept in Kept::ALL {
        let name = format!("op/s, {}", kept.name());
        figures.put(&name, PerSecond, of(kept, Measure::Rate), Nothing);
    }
    for kept in Kept::ALL {
        let name = format!("p99, {}", kept.name());
        figures.put(&name, Nanos, of(kept, Measure::P99), Nothing);
    }
    figures.put("records per sync", Count, records, Nothing);
    Ok(())
}
