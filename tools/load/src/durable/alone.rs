//! One connection: how long a durable acquire takes beside the disk's own sync.

use std::io;

use crate::comparison::{Job, Measure};
use crate::durable::Kept;
use crate::durable::folder::Folder;
use crate::durable::sync::DiskSync;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Nanos, Ratio};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::run::outcome::quantile;
use crate::session::Session;

/// The disk is measured before and after every server, so that both had the same neighbours.
pub(super) fn run(session: &Session, folder: &Folder, figures: &mut Figures) -> io::Result<()> {
    figures.about(Job::Alone.name());
    let spec = session.short(Job::Alone.spec());
    for kept in [Kept::Sync, Kept::InMemory, Kept::Async, Kept::Redis] {
        let mut disk = DiskSync::open(folder)?;
        let server = kept.start(session, folder)?;
        let disk_ns = spec.measure_ns / 4;
        if kept == Kept::Sync {
            disk.measure(session, disk_ns)?;
        }
        let outcome = match &server {
            Some(server) => Some(session.run(kept.name(), &spec, &server.tcp)?),
            None => None,
        };
        let of = |measure: Measure| outcome.as_ref().and_then(|it| measure.of(it));
        let p50 = of(Measure::P50);
        if kept == Kept::Sync {
            disk.measure(session, disk_ns)?;
            let of_disk = |part| quantile(&disk.took, part).map(|ns| ns as f64);
            let ratio = p50.zip(of_disk(0.5)).map(|(ours, disk)| ours / disk);
            figures.put("p50, durable / the disk's sync", Ratio, ratio, AtMost(2.0));
            figures.put("p50, the disk's sync", Nanos, of_disk(0.5), Nothing);
            figures.put("p99, the disk's sync", Nanos, of_disk(0.99), Nothing);
        }
        for (name, value) in [("p50", p50), ("p99", of(Measure::P99))] {
            let name = format!("{name}, {}", kept.name());
            figures.put(&name, Nanos, value, Nothing);
        }
        if let Some(outcome) = &outcome {
            figures.check(outcome);
        }
    }
    Ok(())
}
