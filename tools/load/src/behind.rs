//! How far a standby is behind, end to end: from when a client was told that its change is committed to when the
//! standby has it in its lock table.
//!
//! The standby's own figure begins when etcd has told it of an entry, because clocks of two machines cannot be compared.
//! Here everything is on one machine, so one clock looks at both. It errs on the long side: which entry it was is
//! asked for behind the answer, when there may be a later one, and questions take their time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Clock;

/// Between two looks, so that looking is not what the members do most.
const REST_NS: u64 = 5_000_000;

/// A change of a counter that nobody else uses.
const CHANGE: &[u8] = b"incr\nlatch-load/behind\n1\n";

/// Where the two members are asked.
pub(crate) struct Places {
    /// Where the leader takes changes.
    pub(crate) line: SocketAddr,
    /// Tells how far the leader's log goes.
    pub(crate) leader: LogEntry,
    /// The same of the standby.
    pub(crate) standby: LogEntry,
}

/// Asks a member for the last entry of the log that it has.
pub(crate) type LogEntry = Box<dyn Fn() -> io::Result<u64> + Send>;

/// Looks again and again until it is over. Returns how long it took each time, in nanoseconds.
pub(crate) fn measure(clock: &Clock, at: &Places, is_over: &AtomicBool) -> io::Result<Vec<u64>> {
    let stream = TcpStream::connect(at.line)?;
    stream.set_nodelay(true)?;
    let (mut changes, mut answers) = (stream.try_clone()?, BufReader::new(stream));
    let mut found = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        changes.write_all(CHANGE)?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        if !answer.starts_with("ok ") {
            return Err(io::Error::other(format!("a change is answered {answer:?}")));
        }
        let committed_ns = clock.now_ns();
        let entry = (at.leader)()?;
        while (at.standby)()? < entry {}
        // By then it was handed to the thread that has the table, which takes it before it answers anything.
        let _ = (at.standby)()?;
        found.push(clock.now_ns() - committed_ns);
        clock.rest(REST_NS)?;
    }
    Ok(found)
}

/// The figure that this part of them does not exceed.
pub(crate) fn quantile(found: &mut [u64], part: f64) -> Option<f64> {
    found.sort_unstable();
    let last = found.len().checked_sub(1)?;
    let at = (found.len() as f64 * part).ceil() as usize;
    Some(found[at.saturating_sub(1).min(last)] as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_figures() {
        assert_eq!(quantile(&mut [], 0.99), None);
        assert_eq!(quantile(&mut [7], 0.99), Some(7.0));
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(quantile(&mut hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&mut hundred, 0.5), Some(50.0));
        assert_eq!(quantile(&mut hundred, 1.0), Some(100.0));
    }
}
