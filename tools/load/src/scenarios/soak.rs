//! Every kind of work in turn for a long time: does memory stay constant, is every answer right?

use std::io;

use crate::machine::rss_bytes;
use crate::plans;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count};
use crate::report::figures::Wanted::Nothing;
use crate::run::spec::{Keys, Spec};
use crate::session::Session;

/// Locks that the client holds for longer than their lease, so that it has to renew them.
fn held_for_long() -> [Spec; 2] {
    let held = |keys| Spec {
        keys,
        connections: 16,
        hold_ns: 1_500_000_000,
        warmup_ns: 0,
        measure_ns: 500_000_000,
        via_client: true,
        ..Spec::default()
    };
    [held(Keys::Own), held(Keys::Shared(8))]
}

/// Every kind of work in turn for a long time.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let total_s = session.options.seconds.unwrap_or(600.0);
    figures.about(format!("every kind of work in turn for {total_s} s"));
    let latchd = session.latchd(&[])?;
    let rss = || latchd.target.pid.and_then(rss_bytes).map(|it| it as f64);
    let mut specs = plans::every_kind();
    let each_ns = (2e9_f64).min(total_s * 1e9 / (2 * specs.len()) as f64) as u64;
    for spec in &mut specs {
        spec.warmup_ns = 0;
        spec.measure_ns = each_ns.max(1_000_000);
        spec.via_client = session.options.via_client;
    }
    if session.options.via_client {
        specs.extend(held_for_long());
    }
    let began = session.clock.now_ns();
    let (mut passes, mut answers, mut first_rss) = (0_u32, 0, None);
    while ((session.clock.now_ns() - began) as f64) < total_s * 1e9 || passes < 2 {
        passes += 1;
        for spec in &specs {
            let label = format!("pass {passes}, {}", spec.title());
            let outcome = session.run(&label, spec, &latchd.target)?;
            answers += outcome.answers;
            figures.check(&outcome);
        }
        if figures.wrong.count > 0 {
            break;
        }
        first_rss = first_rss.or_else(rss);
    }
    figures.put("passes", Count, Some(passes.into()), Nothing);
    figures.put("answers checked", Count, Some(answers as f64), Nothing);
    figures.put("memory after the first pass", Bytes, first_rss, Nothing);
    figures.put("memory at the end", Bytes, rss(), Nothing);
    Ok(())
}
