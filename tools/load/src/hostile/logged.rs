//! How much the server logs while strangers attack it. The log stays readable and the disk does not
//! fill.

use std::io;

use crate::hostile::beside::put_bounded;
use crate::report::figures::Figures;
use crate::servers::{LogSize, Server};
use crate::session::{Session, Subject};

/// Most lines and bytes that strangers can make the server log in a second.
const LOG_LINES_MAX: f64 = 32.0;
const LOG_BYTES_MAX: f64 = 32.0 * 512.0;

/// What the server has logged before the attack.
pub(super) struct Log {
    began_ns: u64,
    size: LogSize,
}

impl Log {
    pub(super) fn begin(session: &Session, latchd: &Subject) -> io::Result<Self> {
        Ok(Self {
            began_ns: session.clock.now_ns(),
            size: logged(latchd)?,
        })
    }

    /// Puts how much it has logged since then.
    pub(super) fn put(
        &self,
        session: &Session,
        latchd: &Subject,
        figures: &mut Figures,
    ) -> io::Result<()> {
        let now = logged(latchd)?;
        let seconds = (session.clock.now_ns() - self.began_ns) as f64 / 1e9;
        // What is allowed in a second may come in a moment.
        let per_s = |before: u64, now: u64| (now - before) as f64 / seconds.max(1.0);
        let (lines, bytes) = (
            per_s(self.size.lines, now.lines),
            per_s(self.size.bytes, now.bytes),
        );
        put_bounded(figures, "log lines a second", lines, LOG_LINES_MAX);
        put_bounded(figures, "log bytes a second", bytes, LOG_BYTES_MAX);
        Ok(())
    }
}

fn logged(latchd: &Subject) -> io::Result<LogSize> {
    let server = latchd.server.as_ref();
    server.map_or_else(|| Ok(LogSize::default()), Server::logged)
}
