//! A million held locks, and somebody who looks on over HTTP: how long a scrape is and takes, how long
//! a walk over all pages and a search take, and how long the server's turns are meanwhile.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count, Nanos, Ratio};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::http::{self, push};
use crate::run::outcome::{latencies, quantile};
use crate::scenarios::held_locks::fill;
use crate::scenarios::observe::{MS, longest_turn};
use crate::servers::HTTP;
use crate::session::Session;

/// Scrapes, one after the other.
const SCRAPES: usize = 300;

/// How much longer a scrape may be with all locks than with none: some numbers have more digits.
const LONGER_MAX: f64 = 1.02;

/// What 99 of 100 turns may take: a turn has about two milliseconds.
const TURN_MS_MAX: f64 = 4.2;

/// Longest silence of the server.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// One round.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(1_000_000);
    figures.about(format!("{} held locks, looked at", grouped(count as f64)));
    let latchd = session.latchd(&HTTP)?;
    let missing = || io::Error::new(io::ErrorKind::Unsupported, "the server speaks no HTTP");
    let mut looker = Looker::connect(latchd.target.http.ok_or_else(missing)?)?;
    let empty = looker.get("/metrics")?.len() as f64;
    let held = fill(session, &latchd.target, count)?;
    let turn_before = longest_turn(&latchd.target)?;

    let mut scrapes = latencies();
    let turns = looker.turns()?;
    let mut bytes = 0;
    for _ in 0..SCRAPES {
        let began = session.clock.now_ns();
        bytes = looker.get("/metrics")?.len();
        scrapes.saturating_record(session.clock.now_ns() - began);
    }
    let scraping = looker.turns()?.p99_since(&turns);
    let longer = bytes as f64 / empty;
    figures.put(
        "bytes of a scrape / without locks",
        Ratio,
        Some(longer),
        AtMost(LONGER_MAX),
    );
    figures.put("bytes of a scrape", Bytes, Some(bytes as f64), Nothing);
    put_both(figures, "a scrape", &scrapes);
    let most = AtMost(TURN_MS_MAX * MS);
    figures.put("turns during scrapes, p99", Nanos, scraping, most);

    for (what, query) in [("pages", ""), ("search", "&contains=nowhere")] {
        let turns = looker.turns()?;
        let walked = looker.walk(session, query)?;
        let p99 = looker.turns()?.p99_since(&turns);
        let wanted = if query.is_empty() { count } else { 0 };
        if walked.locks != wanted {
            let found = walked.locks;
            let what = format!("{what}: {found} locks were shown of {wanted}");
            figures.wrong.add(what);
        }
        let pages = Some(walked.each.len() as f64);
        figures.put(&format!("{what}: how many"), Count, pages, Nothing);
        let took = Some(walked.took_ns as f64);
        figures.put(&format!("{what}: all of them"), Nanos, took, Nothing);
        put_both(figures, &format!("{what}: one"), &walked.each);
        figures.put(&format!("turns during {what}, p99"), Nanos, p99, most);
    }
    let turn = longest_turn(&latchd.target)?;
    figures.put("longest turn", Nanos, turn, AtMost(10.0 * MS));
    let name = "longest turn, until all were held";
    figures.put(name, Nanos, turn_before, Nothing);
    drop(held);
    Ok(())
}

fn put_both(figures: &mut Figures, what: &str, took: &Histogram<u64>) {
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let ns = quantile(took, part).map(|ns| ns as f64);
        figures.put(&format!("{what}, {name}"), Nanos, ns, Nothing);
    }
}

/// Somebody who asks over HTTP and waits for every answer.
struct Looker {
    stream: TcpStream,
    come: Vec<u8>,
}

/// A walk over all pages.
struct Walked {
    locks: usize,
    /// How long each page took, and all of them.
    each: Histogram<u64>,
    took_ns: u64,
}

impl Looker {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let come = Vec::new();
        Ok(Self { stream, come })
    }

    /// The body of the answer, which must be 200.
    fn get(&mut self, path: &str) -> io::Result<Vec<u8>> {
        let mut request = Vec::new();
        push(&mut request, &format!("GET {path}"), "", b"");
        self.stream.write_all(&request)?;
        let mut piece = vec![0; 64 * 1024];
        loop {
            if let Some(answer) = http::split(&self.come) {
                let body = self.come[answer.body.clone()].to_vec();
                let is_fine = answer.is_fine;
                self.come.drain(..answer.body.end);
                return match is_fine {
                    true => Ok(body),
                    false => Err(io::Error::other(format!("{path} was refused"))),
                };
            }
            match self.stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.come.extend_from_slice(&piece[..length]),
            }
        }
    }

    /// Reads every page of the locks.
    fn walk(&mut self, session: &Session, query: &str) -> io::Result<Walked> {
        let began = session.clock.now_ns();
        let (mut locks, mut each) = (0, latencies());
        let mut after = String::new();
        loop {
            let asked = session.clock.now_ns();
            let page = self.get(&format!("/v1/locks?limit=1000{query}{after}"))?;
            each.saturating_record(session.clock.now_ns() - asked);
            locks += memchr::memmem::find_iter(&page, b"{\"name\":").count();
            let Some(next) = next_page(&page) else { break };
            after = format!("&after={next}");
        }
        let took_ns = session.clock.now_ns() - began;
        Ok(Walked {
            locks,
            each,
            took_ns,
        })
    }

    /// How long turns have taken so far.
    fn turns(&mut self) -> io::Result<Turns> {
        let page = self.get("/metrics")?;
        Ok(Turns::read(&String::from_utf8_lossy(&page)))
    }
}

/// Where the next page begins, if there is one.
fn next_page(page: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"\"next\":\"";
    let at = memchr::memmem::rfind(page, NAME)? + NAME.len();
    str::from_utf8(&page[at..]).ok()?.split('"').next()
}

/// The histogram of the durations of turns: so many took at most so many seconds.
struct Turns(Vec<(f64, f64)>);

impl Turns {
    fn read(metrics: &str) -> Self {
        const NAME: &str = "latchd_turn_duration_seconds_bucket{le=\"";
        let buckets = metrics.lines().filter_map(|line| {
            let (bound, count) = line.strip_prefix(NAME)?.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.trim().parse().ok()?))
        });
        Self(buckets.collect())
    }

    /// What 99 of 100 turns since then took at most, in nanoseconds, as far as the buckets tell.
    fn p99_since(&self, before: &Self) -> Option<f64> {
        let counts = || self.0.iter().zip(&before.0).map(|(a, b)| (a.0, a.1 - b.1));
        let all = counts().next_back()?.1;
        let mut enough = counts().filter(|&(_, count)| all > 0.0 && count >= 0.99 * all);
        let (seconds, _) = enough.next()?;
        Some(seconds * 1e9).filter(|it| it.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_between_two_looks_count() {
        let metrics = |counts: [u32; 3]| {
            let bounds = ["0.001", "0.002", "+Inf"];
            let lines = bounds.iter().zip(counts).map(|(bound, count)| {
                format!("latchd_turn_duration_seconds_bucket{{le=\"{bound}\"}} {count}\n")
            });
            Turns::read(&lines.collect::<String>())
        };
        let before = metrics([0, 50, 60]);
        assert_eq!(metrics([99, 150, 160]).p99_since(&before), Some(1e6));
        assert_eq!(metrics([98, 150, 160]).p99_since(&before), Some(2e6));
        assert_eq!(
            metrics([9, 100, 160]).p99_since(&before),
            None,
            "too long to tell"
        );
        assert_eq!(before.p99_since(&before), None);
    }

    #[test]
    fn the_last_page_has_no_next() {
        assert_eq!(next_page(br#"{"locks":[],"next":"4096"}"#), Some("4096"));
        assert_eq!(next_page(br#"{"locks":[],"next":null}"#), None);
    }
}
