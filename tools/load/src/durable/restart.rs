//! Very many held locks: how soon they are served again after a kill, and how much room the journal
//! takes while others come and go.

use std::io;
use std::path::Path;

use latchd::store::SEGMENT_BYTES;

use crate::comparison::Job;
use crate::durable::Kept;
use crate::durable::folder::{Folder, bytes_on_disk};
use crate::durable::sync::grant_bytes;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count, Nanos, PerSecond, Ratio};
use crate::report::figures::Wanted::{AtLeast, AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::keys::key_name;
use crate::scenarios::held_locks::fill;
use crate::scenarios::observe::stat;
use crate::servers::ServerKind;
use crate::session::Session;

/// Where the number of locks stands in `stats`: there are lists with that name before it.
const LOCKS: &str = "totals\":{\"locks";

/// How often the room is looked at while locks come and go.
const LOOKS: usize = 8;

/// Takes the locks, kills the server, starts it again, and works beside them.
pub(super) fn run(session: &Session, folder: &Folder, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(1_000_000);
    figures.about(format!("{} held locks", grouped(count as f64)));
    let Some(server) = Kept::Sync.start(session, folder)? else {
        return Ok(());
    };
    let dir = folder.place(Kept::Sync.name());
    let held = fill(session, &server.tcp, count)?;
    drop(server); // killed, and only then the client leaves
    let per_s = held.per_s;
    drop(held);

    let began = session.clock.now_ns();
    let dir_name = dir.to_string_lossy();
    let server = session.start(ServerKind::Latchd, &["--data-dir", &dir_name])?;
    let restored = stat(&server.tcp, LOCKS)?;
    let took = (session.clock.now_ns() - began) as f64;
    figures.put("served again after", Nanos, Some(took), AtMost(2e9));
    let part = restored.map(|it| it / count as f64);
    figures.put("held again / held", Ratio, part, AtLeast(1.0));
    figures.put("filled/s", PerSecond, Some(per_s), Nothing);

    let live = (count * grant_bytes(key_name("fill", 0, 0).len())) as u64;
    let mut spec = session.short(Job::Pipelined.spec());
    spec.measure_ns /= 2;
    let (mut most, mut answers) = (room(&dir)?, 0);
    for _ in 0..LOOKS {
        let outcome = session.run("beside held locks", &spec, &server.tcp)?;
        figures.check(&outcome);
        answers += outcome.answers;
        most = most.max(room(&dir)?);
    }
    let times = (most - SEGMENT_BYTES as f64).max(0.0) / live as f64;
    let name = "room on the disk, less a segment / live";
    figures.put(name, Ratio, Some(times), AtMost(3.0));
    figures.put("room on the disk, most", Bytes, Some(most), Nothing);
    figures.put("live", Bytes, Some(live as f64), Nothing);
    figures.put("operations meanwhile", Count, Some(answers as f64), Nothing);
    Ok(())
}

fn room(dir: &Path) -> io::Result<f64> {
    bytes_on_disk(dir).map(|it| it as f64)
}
