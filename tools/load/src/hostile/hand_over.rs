//! How many hand-overs of one key there are between connections that never sleep, beside a server
//! that only passes the turn on.

use std::io;

use crate::hostile::Scene;
use crate::hostile::beside::longest_turn;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Nanos, PerSecond, Ratio};
use crate::report::figures::Wanted::{AtLeast, Nothing};
use crate::run::outcome::{Outcome, quantile};
use crate::run::spec::{Keys, Rest, Spec};
use crate::servers::ServerKind;
use crate::session::Session;

/// How often the two take turns.
const TURNS: usize = 3;

/// Measures both in turn.
pub(super) fn measure(session: &Session, scene: &Scene, figures: &mut Figures) -> io::Result<()> {
    let spec = session.short(Spec {
        connections: scene.size(session.options.scale()),
        keys: Keys::Shared(1),
        rest: Rest::Never,
        ..Spec::default()
    });
    let ceiling = session.start(ServerKind::Ceiling, &[])?;
    let latchd = session.latchd(&[])?;
    for _ in 0..TURNS {
        let possible = session.run("hand-overs, ceiling", &spec, &ceiling.tcp)?;
        let ours = session.run("hand-overs", &spec, &latchd.target)?;
        let (ours_per_s, possible_per_s) = (ours.takes_per_s(), possible.takes_per_s());
        let ratio = ours_per_s.zip(possible_per_s).map(|(a, b)| a / b);
        figures.put("hand-overs/s / ceiling", Ratio, ratio, AtLeast(0.9));
        figures.put("hand-overs/s", PerSecond, ours_per_s, Nothing);
        figures.put("hand-overs/s, ceiling", PerSecond, possible_per_s, Nothing);
        let p99 = |it: &Outcome| quantile(&it.take, 0.99).map(|ns| ns as f64);
        figures.put("waiting, p99", Nanos, p99(&ours), Nothing);
        figures.put("waiting, p99, ceiling", Nanos, p99(&possible), Nothing);
        figures.check(&ours);
        figures.check(&possible);
    }
    let turn = longest_turn(&latchd.target)?;
    figures.put("longest turn", Nanos, turn, Nothing);
    Ok(())
}
