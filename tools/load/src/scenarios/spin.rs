//! One connection to a server that never sleeps.

use std::io;

use crate::comparison::Job;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Nanos, Ratio};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::run::outcome::{Outcome, quantile};
use crate::session::Session;

/// The server runs only for this scenario, because it would take its core from all others.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    figures.about("1 connection, `--spin`");
    let spec = session.short(Job::Alone.spec());
    let p50 = |it: &Outcome| Some(quantile(&it.take, 0.5)? as f64);
    let redis = match session.redis()? {
        Some(server) => Some(session.run("1 connection, redis", &spec, &server.tcp)?),
        None => None,
    };
    let latchd = session.latchd(&["--spin"])?;
    let ours = session.run("1 connection, spinning", &spec, &latchd.target)?;
    let redis_p50 = redis.as_ref().and_then(p50);
    let ratio = p50(&ours).zip(redis_p50).map(|(ours, redis)| ours / redis);
    figures.put("p50 / redis", Ratio, ratio, AtMost(0.35));
    figures.put("p50", Nanos, p50(&ours), Nothing);
    figures.put("p50, redis", Nanos, redis_p50, Nothing);
    figures.check(&ours);
    redis.iter().for_each(|it| figures.check(it));
    Ok(())
}
